"""LogReader on a consumer: by explicit assignment (`TailReader`) or as a member of a group (`GroupReader`).

In: topics and checked start offsets. Out: records in order within each partition. Invariants: an offset outside
the log is a LogGapError, never a silent jump; a reader tells and commits only partitions that it owns now; a read
that raises has lost nothing, the next one gives it. Failure: while the broker is away `read` gives nothing and goes
on by itself when it is back; a consumer that has lost it for good is replaced (`Contact`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Message

from tracegrad.schemas.errors import ConfigurationError, OverloadedError, RecordError, TracegradError, UnavailableError
from tracegrad.schemas.log.protocol import Record, TopicPartition
from tracegrad.schemas.reasons import Reason

from .admin import KafkaAdmin, checked, partition_of
from .client_settings import Contact, Settings
from .errors import boundary, log_error, translate

logger = logging.getLogger(__name__)

_MAX_UNREAD = 5000
"""Bound on what is read ahead while a commit is awaited."""
_ANSWER_S = 15.0
"""How long Kafka may take to tell what is committed, and to commit."""
_UNKNOWN_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID)


class TailReader:
    """LogReader by explicit assignment; `GroupReader` adds the group."""

    def __init__(self, admin: KafkaAdmin, settings: Mapping[str, Any], *, close_s: float = 30.0) -> None:
        """`close_s`: how long a consumer may take to close before it is left to itself."""
        self._admin, self._close_s = admin, close_s
        self._settings = {**settings, "error_cb": log_error}
        self._next: dict[TopicPartition, int] = {}
        self._unread: list[Message] = []
        """Messages that came while a commit was awaited, or beside an error that is not judged yet."""
        self._failure: TracegradError | None = None
        self._must_reopen = False
        self._contact = Contact()
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        with boundary("make a consumer"):
            return Consumer({**self._settings, "stats_cb": self._contact.read_statistics})

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions from these offsets, which the caller has checked."""
        self._next = dict(starts)
        with boundary("assign partitions"):
            self._consumer.assign([partition_of(where, offset) for where, offset in starts.items()])

    def _reopen(self) -> None:
        starts, consumer = dict(self._next), self._new_consumer()
        self.close()
        self._consumer = consumer
        self.assign(starts)

    def read(self, *, max_records: int = 500, timeout_s: float = 0.1) -> Sequence[Record]:
        if self._contact.is_lost:
            logger.warning("a consumer that knows no broker any more is replaced")
            self._contact, self._must_reopen = Contact(), True
        if self._must_reopen:
            self._reopen()
            self._must_reopen = False
        self._raise_failure()
        if not self._unread:
            with boundary("read"):
                # Asked for more than one, librdkafka would wait out the time for those that are not there yet.
                self._unread = self._consumer.consume(1, timeout_s)
                if self._unread and max_records > 1:
                    more = self._consumer.consume(max_records - 1, 0.0)
                    # Only now: a revocation in that call may have taken `_unread` away.
                    self._unread += more
            self._raise_failure()
        # Callers take an UnavailableError for "nothing read": no message may be taken out before its neighbours
        # are judged.
        for message in self._unread[:max_records]:
            self._judge(message)
        messages, self._unread = self._unread[:max_records], self._unread[max_records:]
        records = []
        for message in messages:
            if message.error() is not None:
                continue
            record = _record(message)
            where = TopicPartition(record.topic, record.partition)
            # Records fetched before a partition was taken away belong to its new owner.
            if record.offset >= self._next.get(where, record.offset + 1):
                self._next[where] = record.offset + 1
                records.append(record)
        return records

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _judge(self, message: Message) -> None:
        """Raises when reading cannot go on; transient errors only log, librdkafka tries again."""
        error = message.error()
        if error is None:
            return
        where = f"read {message.topic()!r} partition {message.partition()} offset {message.offset()}"
        if error.code() == KafkaError._BAD_MSG:
            known = self._next.get(TopicPartition(message.topic() or "", message.partition() or 0), 0)
            at = max(known, message.offset() or 0)  # where the batch begins; what came before it is whole
            # Not a gap, over which a reader may go on.
            raise RecordError(
                f"expected to {where}, got {error.str()}: a record from {at} on is not as it was written; put the "
                "segment back from a copy",
                reason=Reason.DAMAGED,
            )
        failure = translate(error, doing=where)
        if isinstance(failure, UnavailableError | OverloadedError):
            log_error(error)
        elif error.code() in _UNKNOWN_TOPIC:
            # A broker that has just come back may not know its topics yet; only a second opinion is fatal.
            self._admin.partition_counts([message.topic() or ""])
        else:
            raise failure

    def positions(self) -> Mapping[TopicPartition, int]:
        return dict(self._next)

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        raise ConfigurationError("expected a reader made by join to commit with, got one made by tail")

    def close(self) -> None:
        self._next.clear()
        self._unread.clear()
        # librdkafka has been seen to wait for its own threads for ever, behind a batch that was damaged.
        closing = threading.Thread(target=self._close, name="close a consumer", daemon=True)
        closing.start()
        closing.join(self._close_s)
        if closing.is_alive():
            logger.warning("a consumer has not closed within %g s; it is left to itself", self._close_s)

    def _close(self) -> None:
        try:
            with contextlib.suppress(UnavailableError), boundary("close a consumer"):
                self._consumer.close()
        except TracegradError as error:
            logger.warning("%s", error)


def _record(message: Message) -> Record:
    headers: Any = message.headers() or ()
    return Record(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=message.key(),
        value=message.value(),
        headers=tuple((name, value if value is not None else b"") for name, value in headers),
        timestamp_ms=message.timestamp()[1],
    )


class GroupReader(TailReader):
    """A member of a group with the cooperative protocol: a rebalance takes only the partitions that move."""

    def __init__(self, admin: KafkaAdmin, settings: Settings, group: str, topics: Sequence[str]) -> None:
        self._commits: list[tuple[KafkaError | None, set[tuple[str, int, int]]]] = []
        super().__init__(admin, {**settings, "on_commit": self._on_commit})
        self._group = group
        self._topics = list(topics)
        self._subscribe()

    def _subscribe(self) -> None:
        with boundary(f"join group {self._group!r}"):
            self._consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )

    def _on_assign(self, consumer: Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        # An exception raised here would pass through librdkafka's frames, so `read` raises it instead.
        try:
            starts = self._starts(consumer, partitions)
        except TracegradError as failure:
            self._failure = failure
            self._must_reopen = True
            return
        self._next.update(starts)
        consumer.incremental_assign([partition_of(where, offset) for where, offset in starts.items()])
        logger.info("group %s: %d partitions assigned", self._group, len(starts))

    def _starts(
        self, consumer: Consumer, partitions: list[confluent_kafka.TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets, else 0; each is checked to lie in the log."""
        if not partitions:
            return {}
        with boundary(f"tell the committed offsets of group {self._group!r}"):
            committed = consumer.committed(partitions, timeout=_ANSWER_S)
        offsets = {TopicPartition(found.topic, found.partition): found.offset for found in committed}
        kept = self._admin.kept(offsets)
        return {
            # Without one nothing was read yet, or Kafka forgot it: where the first records are gone, some are lost.
            where: checked(where, max(offset, 0), kept[where])
            for where, offset in offsets.items()
        }

    def _on_revoke(self, consumer: Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        for partition in partitions:
            self._next.pop(TopicPartition(partition.topic, partition.partition), None)
        gone = {(partition.topic, partition.partition) for partition in partitions}
        self._unread = [unread for unread in self._unread if (unread.topic(), unread.partition()) not in gone]
        consumer.incremental_unassign(partitions)
        logger.info("group %s: %d partitions revoked", self._group, len(partitions))

    def _reopen(self) -> None:
        """Leaves, and joins anew."""
        self.close()
        self._consumer = self._new_consumer()
        self._subscribe()

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        owned = {where: offset for where, offset in next_offsets.items() if where in self._next}
        if len(owned) < len(next_offsets):
            # They come again to their new owner; a commit from here could move that owner's offset back.
            logger.warning("group %s: %d offsets not owned any more", self._group, len(next_offsets) - len(owned))
        if not owned:
            return
        wanted = {(where.topic, where.partition, offset) for where, offset in owned.items()}
        doing = f"commit offsets of group {self._group!r}"
        self._commits.clear()
        with boundary(doing):
            self._consumer.commit(offsets=[partition_of(where, offset) for where, offset in owned.items()])
        self._await_commit(wanted, doing)

    def _await_commit(self, wanted: set[tuple[str, int, int]], doing: str) -> None:
        """Serves callbacks until this commit's has come; a synchronous commit has no time-out of its own."""
        deadline = time.monotonic() + _ANSWER_S
        paused: list[confluent_kafka.TopicPartition] = []
        while time.monotonic() < deadline:
            for error, offsets in self._commits:
                if wanted <= offsets:
                    if paused:
                        self._consumer.resume(paused)
                    if error is not None:
                        raise translate(error, doing=doing)
                    return
            with boundary(doing):
                if not paused and len(self._unread) >= _MAX_UNREAD:
                    paused = self._consumer.assignment()
                    self._consumer.pause(paused)
                found = self._consumer.consume(1, 0.02)
            # Only now: a revocation in that call may have taken some of `_unread` away.
            self._unread += found
        if paused:
            self._consumer.resume(paused)
        raise UnavailableError(f"expected Kafka to {doing} within {_ANSWER_S} s, got no answer; try again")

    def _on_commit(self, error: KafkaError | None, partitions: list[confluent_kafka.TopicPartition]) -> None:
        failed = error or next((partition.error for partition in partitions if partition.error is not None), None)
        self._commits.append((failed, {(found.topic, found.partition, found.offset) for found in partitions}))
