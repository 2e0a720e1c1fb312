"""A run's records folded into a RunState, without a log."""

from __future__ import annotations

from collections.abc import Iterable

from tests.streams.make import RUN_HASH, TOPICS, Streams
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.terminal import Event, Lines
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.topics import Topic


def new_state(*, remembered: int = 1_000) -> RunState:
    """Of the small run."""
    return RunState(TOPICS, RunHash(RUN_HASH), "policy", remembered=remembered)


def fold_all(state: RunState, streams: Streams, which: Iterable[Topic], now_s: float = 0.0) -> RunState:
    """The state with whole topics folded, one after the other."""
    for topic in which:
        for record in streams.log.get(topic, ()):
            state.fold(record, now_s)
    return state


def read(lines: Lines, state: RunState, streams: Streams, which: Iterable[Topic]) -> list[Event]:
    """What a view says while whole topics are folded, one after the other."""
    events: list[Event] = []
    for topic in which:
        for record in streams.log.get(topic, ()):
            state.fold(record, 0.0)
            events += lines.news(state, 0.0)
    return events
