"""Questions to the cluster and changes of it: topics, offsets, a group's commits.

In: names and offsets. Out: facts, each asked anew. Invariant: an offset is handed out as a place to read from
only after it was seen to lie in the log. Failure: UnavailableError after a bounded wait; ConfigurationError for a
topic that does not exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import EarliestSpec, LatestSpec, OffsetSpec, TimestampSpec
from confluent_kafka.cimpl import NewTopic

from tracegrad.schemas.beat import waiting
from tracegrad.schemas.errors import ConfigurationError, LogGapError, UnavailableError
from tracegrad.schemas.log.protocol import Offsets, TopicPartition
from tracegrad.schemas.retry import retry

from .client_settings import Settings
from .errors import boundary, log_error, translate

T = TypeVar("T")

_NONE = -1
"""For the offset of a time behind all records."""
_ELECTING_S = 10.0
"""How long a leader may be looked for before a person is told: each start of a run makes topics, on a busy machine."""
_UNKNOWN = (UnavailableError, ConfigurationError)
"""A broker that has just come back, or by which a topic was made a moment ago, may not know it yet."""
_UNANSWERED = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Sixteen zero bytes: what a cluster from before topic ids answers."""


def partition_of(where: TopicPartition, offset: int = confluent_kafka.OFFSET_INVALID) -> confluent_kafka.TopicPartition:
    """A partition in the library's own words."""
    return confluent_kafka.TopicPartition(where.topic, where.partition, offset)


def checked(where: TopicPartition, wanted: int, kept: Offsets) -> int:
    """The offset, if it lies in the log; else LogGapError."""
    if not kept.begin <= wanted <= kept.end:
        why = "were deleted before they were read" if wanted < kept.begin else "at the log's end are lost"
        raise LogGapError(
            f"expected offset {wanted} of {where.topic!r} partition {where.partition} in the log, got "
            f"[{kept.begin}, {kept.end}]: records {why}; start the run again, which mends what can be mended and says "
            "what cannot"
        )
    return wanted


def _raise_first(answer: Iterable[confluent_kafka.TopicPartition], doing: str) -> None:
    """Of an answer's partitions each may bear an error of its own."""
    for partition in answer:
        if partition.error is not None:
            raise translate(partition.error, doing=doing)


class KafkaAdmin:
    """An admin client, connected at its first use. Any thread may call it."""

    def __init__(self, base: Settings, *, timeout_s: float = 15.0, unknown_s: float = 15.0) -> None:
        """
        Args:
            timeout_s: for each question to the cluster; more than a broker's restart (3 s) takes.
            unknown_s: how long a topic may be unknown to the broker that is asked. Past it a whole run ends.
        """
        self._base, self._timeout_s, self._unknown_s = base, timeout_s, unknown_s
        self._client = self._new_client()

    def _new_client(self) -> AdminClient:
        with boundary("make an admin client"):
            return AdminClient(dict(self._base), error_cb=log_error)

    def _patiently(self, ask: Callable[[], T], *, doing: str = "asking Kafka", is_unknown: bool = False) -> T:
        """Asks again while the cluster finds its leaders: after a topic is made, or a broker comes back."""
        on, patience_s = (_UNKNOWN, self._unknown_s) if is_unknown else (UnavailableError, self._timeout_s)
        return retry(ask, doing=doing, on=on, patience_s=patience_s, first_s=0.05, max_s=0.5, quiet_s=_ELECTING_S)

    @contextlib.contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        """Around one question to `_client`. Without an answer in time another takes its place: it may have lost the
        cluster for good (`Contact`; nobody serves the callbacks of this one). No frame of ours keeps the client:
        it would live as long as the error, which a thread of the client's may hold longest, and librdkafka aborts a
        process in which that thread ends it."""
        waiting(doing)
        try:
            with boundary(doing):
                yield
        except UnavailableError as error:
            if isinstance(cause := error.__cause__, TimeoutError) or (
                isinstance(cause, KafkaException) and cause.args[0].code() in _UNANSWERED
            ):
                self._client = self._new_client()
            raise

    def commit_group_offsets(self, group: str, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Sets the committed offsets of a group that has no members now. UnavailableError while it has some."""
        offsets = [partition_of(where, offset) for where, offset in next_offsets.items()]
        doing = f"set the committed offsets of group {group!r}"
        with self._group_client(group) as client, boundary(doing):
            answer = client.commit(offsets=offsets, asynchronous=False)
        _raise_first(answer or (), doing)

    def partition_counts(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        """Partitions of each topic, or of all. Raises ConfigurationError for a topic that stays unknown."""

        def ask() -> dict[str, int]:
            with self._asking("list topics"):
                found = self._client.list_topics(timeout=self._timeout_s).topics
            counts = {name: len(topic.partitions) for name, topic in found.items() if topic.partitions}
            return counts if topics is None else {name: counts[name] for name in topics}

        try:
            return retry(ask, doing="finding topics", on=KeyError, patience_s=self._unknown_s, first_s=0.1, max_s=0.1)
        except KeyError as error:
            raise ConfigurationError(
                f"expected topic {error.args[0]!r} on {self._base['bootstrap.servers']}, got none of that name; "
                "create it (`tracegrad topics create`)"
            ) from None

    def topic_id(self, topic: str) -> str:
        """Kafka's id of a topic, in base64; empty on a cluster without ids. ConfigurationError for none."""

        def ask() -> str:
            with self._asking(f"describe topic {topic!r}"):
                answer = self._client.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
                found = str(answer[topic].result(self._timeout_s).topic_id)
            return "" if found == _NO_ID else found

        return self._patiently(ask, doing="describing a topic", is_unknown=True)

    def create_topics(self, wanted: list[NewTopic]) -> set[str]:
        """Creates topics; returns the names of those that existed already, which are left as they are."""
        left = {topic.topic: topic for topic in wanted}
        existed: set[str] = set()

        def create() -> None:
            with self._asking("create topics"):
                futures = self._client.create_topics(
                    list(left.values()), operation_timeout=self._timeout_s, request_timeout=self._timeout_s
                )
                failed = None
                for name, future in futures.items():
                    try:
                        future.result(self._timeout_s)
                    except KafkaException as error:
                        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                            failed = translate(error.args[0], doing=f"create topic {name!r}")
                            failed.__cause__ = error
                            continue
                        existed.add(name)
                    # What is made now is not asked for again, else it would seem to have been there before.
                    del left[name]
                if failed:
                    raise failed

        if left:
            retry(create, doing="creating topics", patience_s=self._unknown_s)
        return existed

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Of a topic."""
        return [TopicPartition(topic, partition) for partition in range(self.partition_counts([topic])[topic])]

    def kept(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Offsets]:
        """First and next offsets of partitions that may not be there: ConfigurationError."""
        counts = self.partition_counts(sorted({where.topic for where in wanted}))
        for where in wanted:
            if where.partition >= counts[where.topic]:
                raise ConfigurationError(f"expected a partition of {where.topic!r}, got {where.partition}")
        return self.offsets(wanted)

    def offsets(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Offsets]:
        """First and next offsets of partitions."""
        begins = self._patiently(lambda: self._list_offsets(wanted, EarliestSpec()))  # type: ignore[no-untyped-call]
        ends = self._patiently(lambda: self._list_offsets(wanted, LatestSpec()))  # type: ignore[no-untyped-call]
        return {where: Offsets(begins[where], ends[where]) for where in wanted}

    def offsets_at(self, wanted: Collection[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
        """The first offset of each partition whose record was written at that time or later, else its end."""
        found = self._patiently(lambda: self._list_offsets(wanted, TimestampSpec(at_ms), least=_NONE))
        ends = self.offsets(wanted)
        return {where: ends[where].end if offset < 0 else offset for where, offset in found.items()}

    def _list_offsets(
        self, wanted: Collection[TopicPartition], spec: OffsetSpec, *, least: int = 0
    ) -> dict[TopicPartition, int]:
        with self._asking("list offsets"):
            request = {partition_of(where): spec for where in wanted}
            futures = self._client.list_offsets(request, request_timeout=self._timeout_s)
            found = {
                TopicPartition(partition.topic, partition.partition): future.result(self._timeout_s).offset
                for partition, future in futures.items()
            }
        for where, offset in found.items():
            # librdkafka 2.16 answers OFFSET_INVALID (-1001), and no error, of a broker that was frozen meanwhile.
            if offset < least:
                raise UnavailableError(
                    f"expected an offset of {where.topic!r} partition {where.partition}, got {offset}: the broker "
                    "has not said"
                )
        return found

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The group's committed next offsets of a topic; partitions without one are absent."""
        doing = f"tell the committed offsets of group {group!r}"
        wanted = [partition_of(where) for where in self.partitions(topic)]

        def ask() -> list[confluent_kafka.TopicPartition]:
            with self._group_client(group) as client, boundary(doing):
                answer = client.committed(wanted, timeout=self._timeout_s)
            _raise_first(answer, doing)
            return answer

        return {found.partition: found.offset for found in self._patiently(ask) if found.offset >= 0}

    @contextlib.contextmanager
    def _group_client(self, group: str) -> Iterator[Consumer]:
        """A consumer that never subscribes, for a group's offsets. New for each question: librdkafka 2.16's admin
        client never finds a coordinator again that was restarted, and crashed in some of the answers."""
        with boundary("make a consumer"):
            client = Consumer({**self._base, "group.id": group, "enable.auto.commit": False, "error_cb": log_error})
        try:
            yield client
        finally:
            client.close()
