"""Every way to read topics without a group: to the end that they have now, or for ever.

    for record in read_to_end(log, topic): ...                      a count, a report, a state at start
    for chunk in follow(log, topics, stop=stop): ...                a thread that follows
    async for chunk in in_thread(follow(log, topics, stop=stop)):   the same in an event loop

In: the log and full topic names. Out: records, in order within each partition. Invariants: `read_to_end` ends,
whatever is appended meanwhile; `follow` gives every record once and knows when it has given all that lay there at
first. Failure: a log that is away is waited for; LogGapError where records are gone that may not be missing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ..beat import waiting
from ..errors import LogGapError, RecordError, UnavailableError
from ..records.codec import Codec
from ..retry import retry
from .protocol import Log, LogReader, Position, Record, TopicPartition
from .refusals import Refusals

PATIENCE_S = 600.0
"""How long what reads to an end and tells of it waits for a log that is away: a broker restarts, a cluster fails over,
and giving up would throw away all that was read."""
_READ_RECORDS = 2_000
_END = object()

T = TypeVar("T")

logger = logging.getLogger(__name__)


def read_to_end(
    log: Log,
    topic: str,
    *,
    starts: Mapping[TopicPartition, int] | None = None,
    patience_s: float = PATIENCE_S,
) -> Generator[Record, None, None]:
    """The records of a topic up to the end it has at the first step. Blocks; an event loop takes slices in a thread.

    Args:
        starts: first offsets; a partition that is not named, or whose start is gone, is read from its beginning.
        patience_s: seconds without any record before it gives up.

    Raises:
        UnavailableError: nothing came for `patience_s` before the end was reached.
    """
    moved_at, positions = time.monotonic(), dict[TopicPartition, int]()
    chunks = follow(
        log,
        [topic],
        starts=starts,
        may_skip=True,
        poll_s=0.2,
        max_records=_READ_RECORDS,
        patience_s=patience_s,
    )
    for chunk in chunks:
        for record in chunk.records:
            if record.offset < chunk.ends[TopicPartition(topic, record.partition)]:
                yield record
        if chunk.is_caught_up:
            return
        # Not by its records: those that the log leaves out move it too.
        if chunk.positions != positions:
            moved_at, positions = time.monotonic(), dict(chunk.positions)
        elif time.monotonic() - moved_at > patience_s:
            raise UnavailableError(f"expected the end of {topic}, got nothing for {patience_s:g} s; is Kafka up?")


class Chunk(NamedTuple):
    """What one read brought; also an empty one, so that a follower gets its turn."""

    records: Sequence[Record]
    positions: Mapping[TopicPartition, int]
    """The next offset of each partition, these records included."""
    ends: Mapping[TopicPartition, int]
    """The log's ends at the first read; empty before it."""

    @property
    def is_caught_up(self) -> bool:
        """Whether all that lay on the log at the first read has been given, these records included."""
        return bool(self.ends) and all(self.positions.get(where, 0) >= end for where, end in self.ends.items())

    def has(self, position: Position) -> bool:
        """Whether the record at this position is in this chunk or in one before it."""
        return self.positions.get(TopicPartition(position.topic, position.partition), 0) > position.offset


def follow(
    log: Log,
    topics: Sequence[str],
    *,
    starts: Mapping[TopicPartition, int] | None = None,
    from_end: Collection[str] = (),
    partitions: Collection[int] | None = None,
    may_skip: bool = False,
    poll_s: float = 0.1,
    max_records: int = 500,
    stop: threading.Event | None = None,
    patience_s: float | None = None,
) -> Generator[Chunk, None, None]:
    """Reads topics until `stop` is set. One thread at a time; the first step opens the reader.

    Args:
        starts: where the run began on topics that it shares with others; partitions not named are read from their
            beginning.
        from_end: topics whose past does not matter.
        partitions: only these; None: all.
        may_skip: go on with what is left where records are gone, instead of raising.
        poll_s: a step without records takes so long (the first: no time when none lie there); one with records ends
            at the first.
        max_records: of one chunk.
        patience_s: how long a log that is away is waited for; None: until `stop`.

    Raises:
        LogGapError: an offset lies outside the log: of this run's own past nothing may be missing.
        UnavailableError: the log was away for longer than `patience_s`.
    """
    stop = stop or threading.Event()
    reading = _Follower(log, topics, dict(starts or {}), from_end, partitions, may_skip)
    step = functools.partial(reading.step, max_records, poll_s)
    try:
        while not stop.is_set():
            waiting("reading")
            records = retry(step, doing=f"reading {', '.join(topics)}", patience_s=patience_s, stop=stop)
            yield Chunk(records, reading.positions, reading.ends)
    except UnavailableError:
        if not stop.is_set():
            raise
    finally:
        reading.close()


@dataclass
class _Follower:
    """The reader behind `follow`: opened by the first step, and anew where records are gone that may be skipped."""

    log: Log
    topics: Sequence[str]
    positions: Mapping[TopicPartition, int]
    from_end: Collection[str]
    partitions: Collection[int] | None
    may_skip: bool
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    reader: LogReader | None = None

    def step(self, max_records: int, poll_s: float) -> Sequence[Record]:
        """The next records. Raises LogGapError where some are gone that may not be skipped."""
        try:
            if self.reader is None and not self._open():
                poll_s = 0.0
            assert self.reader is not None
            records = self.reader.read(max_records=max_records, timeout_s=poll_s)
        except LogGapError as error:
            if not self.may_skip:
                raise
            logger.warning("records are gone, going on with what is left: %s", error)
            self.close()
            return ()
        self.positions = dict(self.reader.positions())
        return records

    def _open(self) -> bool:
        """Opens the reader; whether any record lies before it."""
        kept = {
            TopicPartition(topic, number): offsets
            for topic in self.topics
            for number, offsets in self.log.offsets(topic).items()
            if self.partitions is None or number in self.partitions
        }
        if not self.ends:
            self.ends = {where: offsets.end for where, offsets in kept.items()}
            past = {where: end for where, end in self.ends.items() if where.topic in self.from_end}
            self.positions = past | dict(self.positions)
        begins = {where: self.positions.get(where, offsets.begin) for where, offsets in kept.items()}
        if self.may_skip:
            begins = {where: max(kept[where].begin, min(begin, kept[where].end)) for where, begin in begins.items()}
        self.reader = self.log.tail(begins)
        return any(begin < kept[where].end for where, begin in begins.items())

    def close(self) -> None:
        """Releases the reader."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None


async def in_thread(steps: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """Takes each step in a thread. Cancelled or not, the last step is over and the generator closed at its end."""
    running: asyncio.Future[Any] | None = None
    loop = asyncio.get_running_loop()
    try:
        while True:
            running = loop.run_in_executor(None, next, steps, _END)
            step = await asyncio.shield(running)
            if step is _END:
                return
            yield step
    finally:
        # A generator that is closed while its thread is inside would raise, and leave its reader open.
        if running is not None:
            await asyncio.wait([running])
        await asyncio.to_thread(steps.close)


def decoded(
    records: Iterable[Record], codecs: Mapping[str, Codec[Any]], refusals: Refusals | None = None
) -> Iterator[tuple[Record, Any]]:
    """(record, what it says) in order; those that cannot be decoded are handed to `refusals`, if any, and left out."""
    for record in records:
        try:
            value = codecs[record.topic].decode(record.value)
        except RecordError as error:
            if refusals is not None:
                refusals.refuse(record, error)
        else:
            if refusals is not None:
                refusals.accept(record)
            yield record, value
