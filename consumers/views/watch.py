"""Reads a run's topics for a live view: in a thread of its own, without a group.

In: the log, a `RunState` and a view of it. Out: the view's events, to a printer. Invariant: it only reads; a broker
that is away makes it late, never makes the run fail. Failure: logged and tried again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tracegrad.schemas.errors import TracegradError
from tracegrad.schemas.log.follow import PATIENCE_S, follow, read_to_end
from tracegrad.schemas.log.protocol import Log, Offsets, TopicPartition
from tracegrad.schemas.retry import retry
from tracegrad.schemas.topics import INPUTS, STREAMS, Stage, Topic, Topics

from .run_state import RunState
from .terminal import Event, Lines

_REPORTS = 2_000
"""A run of a dozen processes writes so many in two minutes."""


def fold_present(
    log: Log, topics: Topics, state: RunState, which: Iterable[Topic], *, patience_s: float = PATIENCE_S
) -> None:
    """Folds topics from their beginning to their present end. Raises UnavailableError."""
    for topic in which:
        for record in read_to_end(log, topics.name(topic), patience_s=patience_s):
            state.fold(record, time.monotonic())


def fold_processes(log: Log, topics: Topics, state: RunState, *, since_ms: int = 0) -> None:
    """Folds the newest reports of the processes, none from before `since_ms`. Raises UnavailableError."""
    name = topics.name(Topic.PROCESS_STATUS)
    kept = log.offsets(name)
    starts = {TopicPartition(name, number): max(at.begin, at.end - _REPORTS) for number, at in kept.items()}
    for record in read_to_end(log, name, starts=starts):
        if record.timestamp_ms >= since_ms:
            state.fold(record, time.monotonic())


def stage_lags(log: Log, topics: Topics, ends: Mapping[Topic, Mapping[int, Offsets]]) -> dict[Topic, dict[Stage, int]]:
    """Of each input of the stages, by the stage that reads it: records that are not committed yet."""
    lags: dict[Topic, dict[Stage, int]] = {}
    for stage in STREAMS:
        for topic in INPUTS[stage]:
            committed, kept = log.committed(topics.group(stage), topics.name(topic)), ends.get(topic, {})
            waits = (max(0, at.end - committed.get(number, at.begin)) for number, at in kept.items())
            lags.setdefault(topic, {})[stage] = sum(waits)
    return lags


def stream_lag(log: Log, topics: Topics) -> int:
    """Records of the stages' inputs that are not committed yet: waiting, or held by open episodes and groups."""
    ends = {topic: log.offsets(topics.name(topic)) for stage in STREAMS for topic in INPUTS[stage]}
    return sum(sum(lags.values()) for lags in stage_lags(log, topics, ends).values())


def known_lag(log: Log, topics: Topics) -> int | None:
    """As `stream_lag`; None while Kafka does not say."""
    try:
        return stream_lag(log, topics)
    except TracegradError:
        return None


@dataclass
class Watcher:
    """Tails topics in a thread and hands events to a printer; after `start` all is that thread's alone."""

    log: Log
    topics: Topics
    state: RunState
    lines: Lines
    """The view of the state."""
    show: Callable[[Event], None]
    """Prints one event."""
    begin: Literal["end"] | Mapping[TopicPartition, int]
    """`end` when the past does not matter, but that of `lines.whole`; else where the run began on topics that it shares
    with others, all else is read from the beginning."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._drain = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begins; the topics must exist."""
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Shows what is there already, then ends; may be called again."""
        self._drain.set()
        self._thread.join(timeout_s)
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(TracegradError):
            retry(self._follow, doing="watching the run", on=TracegradError, stop=self._stop)

    def _follow(self) -> None:
        topics = [self.topics.name(topic) for topic in self.lines.topics]
        new = [self.topics.name(topic) for topic in self.lines.topics if topic not in self.lines.whole]
        chunks = follow(
            self.log,
            topics,
            starts=None if self.begin == "end" else self.begin,
            from_end=new if self.begin == "end" else (),
            may_skip=True,
            stop=self._stop,
        )
        is_past = self.begin == "end"  # of which only how it ended is said
        for chunk in chunks:
            for record in chunk.records:
                self.state.fold(record, time.monotonic())
                if not is_past:
                    self._say()
            is_past = is_past and not chunk.is_caught_up
            if not is_past:
                self._say()
            if self._drain.is_set() and chunk.is_caught_up and not chunk.records:
                return

    def _say(self) -> None:
        for event in self.lines.news(self.state, time.monotonic()):
            self.show(event)
