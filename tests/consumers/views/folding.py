"""A run's records folded into a RunState, without a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.streams.make import RUN_HASH, TOPICS, Streams
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.terminal import Event, Lines
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.calls import LLM_CALLS
from tracegrad.schemas.records.codec import Codec
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.process_status import PROCESS_STATUS
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS
from tracegrad.schemas.topics import Topic

_CODECS: Mapping[Topic, Codec[Any]] = {
    Topic.EPISODES: EPISODES,
    Topic.LLM_CALLS: LLM_CALLS,
    Topic.PROCESS_STATUS: PROCESS_STATUS,
    Topic.ROLLOUT_EVENTS: ROLLOUT_EVENTS,
    Topic.TRAINING_STEPS: TRAINING_STEPS,
    Topic.WEIGHT_ACKS: WEIGHT_ACKS,
    Topic.WEIGHTS: WEIGHTS,
}


def new_state(*, remembered: int = 1_000) -> RunState:
    """Of the small run."""
    return RunState(TOPICS, RunHash(RUN_HASH), "policy", remembered=remembered)


def fold_all(state: RunState, streams: Streams, which: Iterable[Topic], now_s: float = 0.0) -> RunState:
    """The state with whole topics folded, one after the other."""
    for topic in which:
        for record in streams.log.get(topic, ()):
            state.fold(record, now_s)
    return state


def tell(state: RunState, topic: Topic, *told: Any, now_s: float = 0.0) -> RunState:
    """The state with these records, or bodies, of a topic folded."""
    for offset, one in enumerate(told):
        value = one if one is None or isinstance(one, bytes) else _CODECS[topic].encode(one)
        state.fold(Record(topic=TOPICS.name(topic), partition=0, offset=offset, key=None, value=value), now_s)
    return state


def read(lines: Lines, state: RunState, streams: Streams, which: Iterable[Topic]) -> list[Event]:
    """What a view says while whole topics are folded, one after the other."""
    events: list[Event] = []
    for topic in which:
        for record in streams.log.get(topic, ()):
            state.fold(record, 0.0)
            events += lines.news(state, 0.0)
    return events
