"""The log that rooms of a run are handed: its writers sign, its readers give only what verifies.

    Log -> SignedLog      writer: a MAC on each record of a signed topic       tail, join: without what does not verify
                          judged: the same, for who reads past both

In: any Log and the run's keys (mac.py). Out: a Log. Invariant: this is the one place where records are signed
and the one where they are judged, so that no room can forget it: a MAC that a reader hands on is one that verifies. On
topics that are vouched for and not signed, a record without one is handed on. Positions move over what is left out, so
that nobody waits for it. Failure: none of its own; what is left out is counted with its reason, and the first of a kind
is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import msgspec

from ..metrics import UNVERIFIED, Metrics
from ..reasons import Reason
from ..topics import Topic, Topics
from .mac import MAC_HEADER, SIGNED, VOUCHED, KeyRing
from .protocol import Headers, Log, LogReader, LogWriter, Offsets, Position, Record, TopicPartition

logger = logging.getLogger(__name__)


class SignedLog:
    """schemas.log.protocol.Log on another one."""

    def __init__(self, log: Log, ring: KeyRing, *, topics: Topics, metrics: Metrics) -> None:
        self._log = log
        self._ring = ring
        self._topics = {topics.name(topic): topic for topic in SIGNED | VOUCHED}
        self._metrics = metrics
        self._said: set[tuple[Topic, Reason]] = set()

    def writer(self) -> LogWriter:
        return _Writer(self._log.writer(), self._ring, self._topics)

    def tail(self, starts: Mapping[TopicPartition, int]) -> LogReader:
        return _Reader(self._log.tail(starts), self)

    def join(self, group: str, topics: Sequence[str]) -> LogReader:
        return _Reader(self._log.join(group, topics), self)

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        return self._log.offsets(topic)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        return self._log.committed(group, topic)

    def topic_id(self, topic: str) -> str:
        return self._log.topic_id(topic)

    def judged(self, record: Record) -> Record | None:
        topic = self._topics.get(record.topic)
        if topic in VOUCHED and not self._ring.vouches(topic, record):
            headers = tuple(header for header in record.headers if header[0] != MAC_HEADER)
            return msgspec.structs.replace(record, headers=headers)
        refusal = self._ring.refusal(topic, record) if topic is not None else None
        if topic is None or refusal is None:
            return record
        self._metrics.add(UNVERIFIED, topic, refusal)
        if refusal is not Reason.OTHER_RUN and (topic, refusal) not in self._said:
            self._said.add((topic, refusal))
            logger.warning("left out %r, of which no key of the run says who wrote it: %s", record, refusal.value)
        return None


class _Writer:
    def __init__(self, writer: LogWriter, ring: KeyRing, topics: Mapping[str, Topic]) -> None:
        self._writer = writer
        self._ring = ring
        self._topics = topics

    def append(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[Position]:
        if (signed := self._topics.get(topic)) is not None:
            headers = (*headers, self._ring.sign(signed, key, value))
        return self._writer.append(
            topic, key=key, value=value, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )

    def close(self, timeout_s: float = 10.0) -> None:
        self._writer.close(timeout_s)


class _Reader:
    def __init__(self, reader: LogReader, log: SignedLog) -> None:
        self._reader = reader
        self._log = log

    def read(self, *, max_records: int = 500, timeout_s: float = 0.1) -> Sequence[Record]:
        found = self._reader.read(max_records=max_records, timeout_s=timeout_s)
        return [record for given in found if (record := self._log.judged(given)) is not None]

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._reader.positions()

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        self._reader.commit(next_offsets)

    def close(self) -> None:
        self._reader.close()
