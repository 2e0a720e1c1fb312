"""Spans that no credential vouches for: shown in a runner's episode, and worth nothing; of no runner, as ever."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.make import (
    HOST,
    RUN_HASH,
    Item,
    Streams,
    agent_span,
    call,
    closed,
    config,
    event,
    llm_span,
    otlp,
    reward,
    rollout,
    tool_call,
    tool_span,
)
from tracegrad.schemas.credentials import Holder, attempt_holder, new_host
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.air.rules import AirRule
from tracegrad.streams.config import SelectConfig

NUM_TRIES = int(os.environ.get("TRACEGRAD_TEST_TRIES", "100"))
"""Of each form; the long form of this test is a larger one."""
R1 = rollout(1)
OWN = R1 + "a001"
ATTEMPT = attempt_holder(R1, "a001")
NOBODY = Holder("")
RULES = (AirRule(name="ok", status="succeeded", value=0.5, cap=4),)
TOOLS = (tool_call("one"), tool_call("two"))
CALLS = [call("a", R1, [1], [2], tool_calls=TOOLS)]
ASKED = llm_span(OWN, 1, "a", parent=9, at=0)


def ran(number: int, of: str, **rest: Any) -> bytes:
    """A tool that succeeded."""
    return otlp(tool_span(OWN, number, at=5, gen_ai__tool__call__id=f"call_{of}", status=1, **rest), is_counted=True)


ENDS: list[Item] = [*CALLS, closed(R1, CALLS), reward(R1)]


def paid(episode: Episode) -> list[float]:
    """What AIR paid."""
    return [reward.value for call in episode.calls for reward in call.rewards]


@pytest.mark.parametrize(
    ("holder", "host", "is_own"),
    [
        pytest.param(HOST, HOST, True, id="its agent host"),
        pytest.param(ATTEMPT, None, True, id="its command"),
        pytest.param(new_host(), HOST, False, id="another host"),
        pytest.param(HOST, None, False, id="a host, of a command's attempt"),
        pytest.param(attempt_holder(R1, "a002"), None, False, id="another attempt of the rollout"),
        pytest.param(attempt_holder(rollout(2), "a001"), None, False, id="another rollout"),
        pytest.param(NOBODY, HOST, False, id="nobody"),
    ],
)
def test_air_pays_what_the_attempts_own_agent_sent(holder: Holder, host: Holder | None, is_own: bool) -> None:
    """Any other span is shown with the call that it names, 100 of them too, and pays nothing."""
    streams = Streams(config(air=RULES, deadline_s=1.0))
    for number in range(1 if is_own else NUM_TRIES):
        streams.feed(ran(number + 2, "one"), holder=holder)
    streams.feed(*ENDS, event(R1, host=host, spans_exported=None))
    streams.tick(0.0, 2.0)
    episode = streams.episode
    num_spans = 1 if is_own else NUM_TRIES
    assert paid(episode) == ([0.5] if is_own else [])
    assert (episode.num_spans, episode.num_unproved_spans) == (num_spans, 0 if is_own else num_spans)
    assert [tool.is_proved for tool in episode.calls[0].tools] == [is_own]
    assert (episode.num_tools, episode.num_tools_succeeded) == (is_own, is_own)


@given(st.permutations(range(7)), st.sampled_from([NOBODY, new_host(), attempt_holder(R1, "a002")]))
def test_nobody_displaces_what_the_agent_sent(order: list[int], other: Holder) -> None:
    """Spans at the same places that end later, failed ones, other names: in any order the episode is as without them,
    but that it tells of them."""
    own = [otlp(agent_span(OWN, 9, "planner"), ASKED, is_counted=True), ran(2, "one"), ran(3, "two")]
    end = event(R1, spans_exported=4, spans_marked=True)
    forged = otlp(
        agent_span(OWN, 9, "forger", at=50),
        llm_span(OWN, 1, "a", parent=9, at=50),
        tool_span(OWN, 2, at=50, gen_ai__tool__call__id="call_one", status=2),
        tool_span(OWN, 7, at=60, gen_ai__tool__call__id="call_two", status=2),
        is_counted=True,
    )
    plain, streams = Streams(config(air=RULES)), Streams(config(air=RULES))
    plain.feed(*own, *ENDS, end)
    # Before all else, so that none of it is late.
    streams.feed(forged, holder=other)
    items: list[Item] = [*own, *ENDS, end]
    for number in order:
        streams.feed(items[number])
    expected, found = plain.episode, streams.episode
    assert (paid(expected), expected.closed_by, expected.calls[0].agent) == ([0.5, 0.5], "complete", "planner")
    assert found.calls == expected.calls and found.closed_by == "complete"
    assert (found.num_spans, found.num_unproved_spans) == (5, 1)


def test_nobody_is_waited_for_in_the_agents_place() -> None:
    """Spans of others that say they were counted do not close the episode before the agent's own came."""
    streams = Streams(config(air=RULES))
    for number in range(NUM_TRIES):
        streams.feed(ran(number + 2, "one"), holder=NOBODY)
    streams.feed(*ENDS, event(R1, spans_exported=1, spans_marked=True))
    assert not streams.values(Topic.EPISODES)
    streams.feed(ran(2, "one"))
    assert paid(streams.episode) == [0.5]


@pytest.mark.parametrize("holder", [NOBODY, new_host()], ids=["nobody", "another host"])
def test_nobody_takes_room_from_the_agents_spans(holder: Holder) -> None:
    """Each sender has a bound of its own."""
    streams = Streams(config(air=RULES, max_spans_per_episode=10))
    streams.feed(event(R1, RolloutState.STARTED))
    for number in range(NUM_TRIES):
        streams.feed(ran(number + 100, "two"), holder=holder)
    assert len(streams.values(Topic.DEAD_LETTERS)) >= NUM_TRIES - 10
    streams.feed(ran(2, "one"), *ENDS, event(R1, spans_exported=1, spans_marked=True))
    assert paid(streams.episode) == [0.5]


def test_names_that_nobody_else_tells_are_taken() -> None:
    """An agent whose spans go by a Collector past our gateway keeps its names, on which no reward rests."""
    streams = Streams(config(air=RULES, deadline_s=1.0))
    streams.append(Topic.OTLP_SPANS, otlp(agent_span(OWN, 9, "planner"), ASKED))
    streams.feed(*ENDS, event(R1, host=None, spans_exported=None))
    streams.tick(0.0, 2.0)
    assert [(call.agent, call.joined_by) for call in streams.episode.calls] == [("planner", "response_id")]


def test_a_span_that_also_comes_by_a_collector_is_one() -> None:
    """Before or behind the agent's own export."""
    streams = Streams(config(air=RULES))
    for _ in range(2):
        streams.append(Topic.OTLP_SPANS, ran(2, "one"))
        streams.feed(ran(2, "one"))
    streams.feed(*ENDS, event(R1, spans_exported=1, spans_marked=True))
    episode = streams.episode
    assert (paid(episode), episode.num_spans, episode.num_unproved_spans) == ([0.5], 1, 0)


def test_an_episode_of_no_runner_pays_as_ever() -> None:
    """Whoever sent its spans: there is nobody whose they could have to be."""
    trace = "77" * 16
    streams = Streams(config(air=RULES, select=SelectConfig(capture_all=True)))
    captured = call("a", None, [1], [2], tool_calls=TOOLS, trace_id=trace, purpose=Purpose.UNKNOWN)
    tool = tool_span(trace, 2, at=5, gen_ai__tool__call__id="call_one", status=1)
    streams.feed(captured)
    streams.append(Topic.OTLP_SPANS, otlp(tool))
    streams.tick(0.0, 20.0)
    episode = streams.episode
    assert (paid(episode), episode.num_unproved_spans, RUN_HASH in trace) == ([0.5], 0, False)
