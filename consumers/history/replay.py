"""A source run's history becomes the `episodes` and `transitions` of a new run, on its own topics.

In: the source's log up to its present end, the folds of the new run. Out: records, a `ReplayProgress` as they go.
Invariants: what is written is a function of what was read, so a replay that was broken off goes on when it is called
again: what lies there already, an episode or a group by its id, is made again and not written again. The source is only
read. Failure: LogGapError, UnavailableError of the logs; a fold's own.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing

import msgspec

from tracegrad.schemas.errors import OverloadedError
from tracegrad.schemas.fold import Output
from tracegrad.schemas.log.follow import PATIENCE_S, follow, read_to_end
from tracegrad.schemas.log.made_of import GroupMadeOf, MadeOf, made_of
from tracegrad.schemas.log.protocol import Headers, Log, LogWriter, Offsets, Position, Record, TopicPartition
from tracegrad.schemas.topics import Topic, Topics

from .recorded import RecordedEpisodes
from .refold import Refold

_TELL_S = 1.0
_RECORDS_A_READ = 500
_ACK_S = 60.0
_IN_FLIGHT = 500
"""Appends that are not acknowledged; their records lie in memory."""
_WRITTEN = (Topic.EPISODES, Topic.TRANSITIONS, Topic.DEAD_LETTERS)


class ReplayProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replay is. Example: Progress(num_read=12000, num_records=48000, seconds=2.1, counts={"episodes":
    310})."""

    num_read: int
    num_records: int
    """To be read in all."""
    seconds: float
    """Since it began."""
    counts: Mapping[str, int]
    """Of what was made: `episodes`, `groups`, `incomplete` and `lost` episodes; `gone` records that these lack;
    `written` of their records, `there` of those that lay there already."""
    is_whole: bool = False
    """Whether all was read, and all that follows from it written."""

    @property
    def per_s(self) -> float:
        """Records a second."""
        return self.num_read / self.seconds if self.seconds else 0.0

    @property
    def text(self) -> str:
        """One line."""
        left = (self.num_records - self.num_read) / self.per_s if self.per_s else 0.0
        # Of the first records' time nothing follows: most of it went into opening.
        pace = f", {self.per_s:.0f}/s, {left:.0f} s left" if 100 * self.num_read >= self.num_records else ""
        share = 100 * self.num_read // self.num_records if self.num_records else 100
        gone, incomplete, lost = (self.counts.get(what, 0) for what in ("gone", "incomplete", "lost"))
        missing = f"; {gone} records gone; {incomplete} episodes incomplete, {lost} lost" if gone or incomplete else ""
        return (
            f"{share:3d} %  {self.num_read} of {self.num_records} records{pace}; "
            f"{self.counts.get('episodes', 0)} episodes, {self.counts.get('groups', 0)} groups{missing}"
        )


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What is read."""

    bounds: Mapping[TopicPartition, Offsets]
    """From where to where, in each partition."""
    recorded: RecordedEpisodes
    """By the source; without episodes, what is read is assembled anew."""


def merged(log: Log, bounds: Mapping[TopicPartition, Offsets], stop: threading.Event | None = None) -> Iterator[Record]:
    """The records in [begin, end) of each partition as one stream; fewer once `stop` is set. Blocks.

    Of each partition in order, of several the earliest first, as far as their writers' clocks go; it ends, whatever is
    appended meanwhile, and holds of each partition only what one read brought. Raises UnavailableError, LogGapError.
    """
    with ExitStack() as ends:
        streams = [
            ends.enter_context(closing(_records_of(log, where, bounds[where], stop))) for where in sorted(bounds)
        ]
        yield from heapq.merge(*streams, key=lambda record: record.timestamp_ms)


def _records_of(
    log: Log, where: TopicPartition, bounds: Offsets, stop: threading.Event | None
) -> Generator[Record, None, None]:
    if bounds.begin >= bounds.end:
        return
    chunks = follow(
        log,
        [where.topic],
        starts={where: bounds.begin},
        partitions=[where.partition],
        max_records=_RECORDS_A_READ,
        stop=stop,
        patience_s=PATIENCE_S,
    )
    with closing(chunks):
        for chunk in chunks:
            for record in chunk.records:
                if record.offset < bounds.end:
                    yield record
            if chunk.positions.get(where, 0) >= bounds.end:
                return


def replay(
    history: History,
    source: Log,
    refold: Refold,
    *,
    target: Log | None,
    topics: Topics,
    stop: threading.Event,
    tell: Callable[[ReplayProgress], None],
    look: Callable[[Output], None] | None = None,
) -> ReplayProgress:
    """Reads the history once, folds it, and writes what follows. Blocks until the end, or until `stop` is set.

    Args:
        source: the log that the history lies on, as readers of the new run are given it.
        refold: new, of the history's recorded episodes.
        target: the new run's log; None: nothing is written, it is only counted.
        topics: the new run's.
        look: is shown each record that is made.
    """
    refold.give_up(history.bounds)
    written = _Written(target, topics) if target is not None else None
    reading = _Reading(history.bounds)

    def progress(*, is_whole: bool = False) -> ReplayProgress:
        counts = refold.counts + (written.counts if written is not None else Counter())
        return reading.progress(counts, is_whole=is_whole)

    told = reading.started
    try:
        for record in merged(source, history.bounds, stop):
            _write(written, refold.fold(record), look)
            reading.pass_by(record)
            now = time.monotonic()
            if now - told >= _TELL_S:
                told = now
                tell(progress())
            if stop.is_set():
                return progress()
        if stop.is_set():
            return progress()
        _write(written, refold.finish(), look)
    finally:
        if written is not None:
            written.close()
    return progress(is_whole=True)


class _Reading:
    """How far it has come, by positions: what readers pass over, as what another run wrote, is behind it too."""

    def __init__(self, bounds: Mapping[TopicPartition, Offsets]) -> None:
        self.started = time.monotonic()
        self.num_read = 0
        self._next = {where: offsets.begin for where, offsets in bounds.items()}
        self._num_records = sum(offsets.end - offsets.begin for offsets in bounds.values())

    def pass_by(self, record: Record) -> None:
        """It was folded."""
        where = TopicPartition(record.topic, record.partition)
        self.num_read += record.offset + 1 - self._next[where]
        self._next[where] = record.offset + 1

    def progress(self, counts: Mapping[str, int], *, is_whole: bool) -> ReplayProgress:
        """Now."""
        return ReplayProgress(
            num_read=self._num_records if is_whole else self.num_read,
            num_records=self._num_records,
            seconds=time.monotonic() - self.started,
            counts=counts,
            is_whole=is_whole,
        )


def _write(written: _Written | None, outputs: Iterator[Output], look: Callable[[Output], None] | None) -> None:
    for output in outputs:
        if look is not None:
            look(output)
        if written is not None:
            written.add(output)


class _Written:
    """The new run's topics: each record once, however often it is made."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self.counts: Counter[str] = Counter()
        self._topics = topics
        self._there: Counter[bytes] = Counter(
            _name_of(topic, record.key, record.value or b"", record.headers)
            for topic in _WRITTEN
            for record in read_to_end(log, topics.name(topic))
        )
        self._writer: LogWriter = log.writer()
        self._pending: deque[Future[Position]] = deque()

    def add(self, output: Output) -> None:
        """Appends it, unless it lies there. Raises what the log raises."""
        name = _name_of(output.topic, output.key, output.value, output.headers)
        if self._there[name] > 0:
            self._there[name] -= 1
            self.counts["there"] += 1
            return
        if len(self._pending) >= _IN_FLIGHT:
            self._pending.popleft().result(_ACK_S)
        self._pending.append(self._append(output))
        self.counts["written"] += 1

    def _append(self, output: Output) -> Future[Position]:
        while True:
            try:
                return self._writer.append(
                    self._topics.name(output.topic),
                    key=output.key,
                    value=output.value,
                    headers=output.headers,
                    partition=output.partition,
                )
            except OverloadedError:
                if not self._pending:
                    raise
                self._pending.popleft().result(_ACK_S)

    def close(self) -> None:
        """When all is acknowledged."""
        try:
            while self._pending:
                self._pending.popleft().result(_ACK_S)
        finally:
            self._writer.close()


def _name_of(topic: Topic, key: bytes | None, value: bytes, headers: Headers) -> bytes:
    """By which a record is known again: what it is of, else its bytes. Retention may have taken since then what an
    episode was made of, and what is left makes another one."""
    told: tuple[str, ...] | None = None
    if topic is Topic.EPISODES and (episode := made_of(headers, MadeOf)) is not None:
        told = (episode.id, str(episode.revision))
    elif topic is Topic.TRANSITIONS and (group := made_of(headers, GroupMadeOf)) is not None:
        told = (group.group,)
    if told is not None:
        return "\0".join((topic.value, *told)).encode()
    return hashlib.sha256(b"\0".join((topic.value.encode(), key or b"", hashlib.sha256(value).digest()))).digest()
