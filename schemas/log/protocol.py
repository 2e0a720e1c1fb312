"""The corridors: what a room may do with topics. `compose.kafka` implements this on Apache Kafka.

All calls may block for at most the time they are given; all are safe to call from one thread at a time, except
`LogWriter.append`, which any thread may call. Async code awaits `asyncio.wrap_future(writer.append(...))`.
Errors: UnavailableError (broker away past the time given), RecordError (record too large),
ConfigurationError (unknown topic, refused by ACL), LogGapError (asked for offsets that are gone).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec

AWAY_S = 120.0
"""How long the log may be away before who waits for it gives up, and is restarted, which takes longer than to wait on:
a broker that restarts, or fails over, is back by then."""
Headers = tuple[tuple[str, bytes], ...]


class TopicPartition(NamedTuple):
    """One partition of one topic, by its full name."""

    topic: str
    partition: int


class Position(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int


class Offsets(NamedTuple):
    """The log's first kept offset and its next one; equal when empty."""

    begin: int
    end: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One record as read from the log."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 0
    """The producer's clock, milliseconds since the epoch."""

    def __repr__(self) -> str:
        return f"Record({self.topic}[{self.partition}]@{self.offset}, {len(self.value or b'')} bytes)"

    @property
    def position(self) -> Position:
        """Where this record lies."""
        return Position(self.topic, self.partition, self.offset)


class LogWriter(Protocol):
    """An idempotent producer with acks=all."""

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
        """Hands a record to the broker; the future ends when it is acknowledged, or with the error.

        Args:
            timestamp_ms: what the record says that its time is, milliseconds since the epoch, at least 1; None: now.
                A broker refuses one that lies an hour ahead of its clock.

        Raises OverloadedError at once when the bounded buffer is full.
        """

    def close(self, timeout_s: float = 10.0) -> None:
        """Waits until every append has ended, and releases. Raises UnavailableError past the time."""


class LogReader(Protocol):
    """A consumer, by explicit assignment (`Log.tail`) or as a member of a group (`Log.join`)."""

    def read(self, *, max_records: int = 500, timeout_s: float = 0.1) -> Sequence[Record]:
        """The next records in order within each partition, as soon as there is one; empty when none came in time."""

    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to be read of each partition assigned now."""

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Stores the group's committed offsets, synchronously. Only for readers made by `join`."""

    def close(self) -> None:
        """Leaves the group, if any, and releases."""


class Log(Protocol):
    """The factory that a room is handed."""

    def writer(self) -> LogWriter:
        """A new writer; one a process is enough."""

    def tail(self, starts: Mapping[TopicPartition, int]) -> LogReader:
        """A reader of these partitions from these offsets, without a group."""

    def join(self, group: str, topics: Sequence[str]) -> LogReader:
        """A member of a consumer group, from its committed offsets, else offset 0. Nothing is auto-committed."""

    def judged(self, record: Record) -> Record | None:
        """The record as a reader of this log gives it, None where it does not: for who reads past `tail` and `join`."""

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        """First and next offsets of each partition of a topic."""

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Committed next offsets of a group; partitions without one are absent."""

    def topic_id(self, topic: str) -> str:
        """What tells a topic from one that is made anew under its name; empty where nothing does."""
