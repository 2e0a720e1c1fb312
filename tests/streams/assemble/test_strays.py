"""Traces of which nobody but their spans has spoken: held apart, so that a flood of them costs rollouts nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.streams.assemble.test_assemble import markers
from tests.streams.make import RUN_HASH, Streams, agent_span, call, closed, config, event, otlp, reward, rollout
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

ROLLOUTS = [rollout(number) for number in range(100)]
CALLS = {name: call(f"c{number}", name) for number, name in enumerate(ROLLOUTS)}
SPANS = [otlp(agent_span(name + "a001", 1, "planner"), is_counted=True) for name in ROLLOUTS]


def flood(num: int, start: int = 0) -> bytes:
    """One request with so many traces that bear the run's hash."""
    return otlp(*[agent_span(f"{RUN_HASH}f{number:023x}", 1, "x") for number in range(start, start + num)])


@pytest.mark.parametrize(
    ("num_traces", "bounds"),
    [
        pytest.param(2_001, {"max_open_episodes": 200, "max_stray_traces": 150}, id="small"),
        pytest.param(20_001, {}, id="20001", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("is_early", [False, True], ids=["events first", "spans first"])
def test_a_flood_of_traces_costs_no_rollout_a_fact(num_traces: int, bounds: dict[str, Any], is_early: bool) -> None:
    """Whether a rollout's spans come before its runner's word or after it."""
    streams = Streams(config(**bounds))
    started = [event(name, RolloutState.STARTED) for name in ROLLOUTS]
    streams.feed(flood(num_traces // 2), *(SPANS if is_early else started), *CALLS.values())
    streams.feed(flood(num_traces - num_traces // 2, num_traces // 2), *(started if is_early else SPANS))
    for name, made in CALLS.items():
        streams.feed(closed(name, [made]), reward(name), event(name))
    assert {episode.rollout_id for episode in streams.episodes} == set(ROLLOUTS)
    assert [(episode.closed_by, len(episode.calls)) for episode in streams.episodes] == [("complete", 1)] * 100
    assert {episode.services for episode in streams.episodes} == {("agent",)}
    assert not streams.log.get(Topic.DEAD_LETTERS)


def test_early_spans_outlast_a_flood_without_a_credential() -> None:
    """After a restart the spans of a rollout may be read long before its runner's word and its calls."""
    streams = Streams(config(max_stray_traces=150))
    streams.feed(*SPANS)
    streams.append(Topic.OTLP_SPANS, flood(2_001))
    assert streams.assemble.num_open == 150
    for name, made in CALLS.items():
        streams.feed(event(name, RolloutState.STARTED), made, closed(name, [made]))
        streams.feed(reward(name), event(name, spans_exported=1))
    assert [episode.services for episode in streams.episodes] == [("agent",)] * 100


def test_strays_end_without_a_trace() -> None:
    """No close, no marker; their inputs are done, so that a restart need not read them again."""
    streams = Streams(config(orphan_s=600.0))
    streams.feed(flood(50))
    streams.tick(0.0, 600.0)
    streams.feed(event(rollout(1), RolloutState.STARTED))
    assert (streams.episodes, markers(streams), streams.assemble.num_open) == ([], [], 1)
    num_facts = sum(b"x" in value for value in streams.values(Topic.EPISODE_EVENTS)[:50])
    assert len([place for place in streams.done if place[0].endswith("episode_events")]) == num_facts == 50


def test_selected_strays_close_by_a_record() -> None:
    """`[select]` shows them, so they end as every episode does."""
    streams = Streams(config(idle_s=10.0, select=SelectConfig(capture_all=True)))
    streams.feed(otlp(agent_span("cd" * 16, 1, "helper")))
    streams.tick(0.0, 10.0)
    assert [(episode.episode_id, episode.closed_by) for episode in streams.episodes] == [("cd" * 16, "idle")]


def test_strays_are_bounded() -> None:
    """The longest silent go first; what they hold is bounded too."""
    streams = Streams(config(max_stray_traces=10))
    streams.feed(flood(30))
    assert streams.assemble.num_open == 10
