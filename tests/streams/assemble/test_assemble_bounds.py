"""Episodes of agents that nobody started, what is taken, and the bounds of the assembler's memory."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.streams.assemble.test_assemble import R1, A, B, markers
from tests.streams.make import (
    TOPICS,
    Streams,
    agent_span,
    call,
    chain,
    closed,
    config,
    event,
    otlp,
    reward,
    rollout,
    span,
)
from tracegrad.schemas.credentials import Holder
from tracegrad.schemas.metrics import EPISODES_CLOSED, PROPOSALS
from tracegrad.schemas.records.calls import CallRecord, SamplingParameters
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

CAPTURED = "ab" * 16


def captured(name: str = "a", **rest: Any) -> CallRecord:
    """A call of an agent that nobody started."""
    return call(name, None, [1], [2], trace_id=CAPTURED, **rest)


def test_an_agent_without_runner_closes_when_it_falls_silent() -> None:
    """Each record starts the wait anew."""
    streams = Streams(config(idle_s=10.0, select=SelectConfig(capture_all=True)))
    streams.feed(captured())
    streams.tick(0.0)
    streams.feed(otlp(agent_span(CAPTURED, 1, "helper"), service="shop"))
    streams.tick(9.0, 18.0)
    assert streams.episodes == []
    streams.tick(19.0)
    episode = streams.episode
    assert (episode.episode_id, episode.rollout_id, episode.group, episode.reward) == (CAPTURED, None, None, None)
    assert (episode.closed_by, episode.services, episode.state.value) == ("idle", ("shop",), "unknown")
    assert (episode.calls[0].masked, episode.unscored) == ("", "no_reward")
    assert streams.assemble.metrics.value(PROPOSALS, "idle") == 1


def test_traces_without_calls_agents_or_tools_are_unattributed() -> None:
    """Counted and closed, not emitted."""
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    streams.feed(otlp(span(CAPTURED, 1, "GET /")))
    streams.tick(0.0, 10.0)
    assert streams.episodes == []
    assert [(m.id, m.disposition) for m in markers(streams)] == [(CAPTURED, "unattributed")]
    assert streams.assemble.metrics.value(EPISODES_CLOSED, "unattributed") == 1


@pytest.mark.parametrize(
    ("select", "disposition"),
    [
        (SelectConfig(), "not_selected"),
        (SelectConfig(capture_all=True), "emitted"),
        (SelectConfig(services=("sho*",)), "emitted"),
        (SelectConfig(services=("bank",)), "not_selected"),
        (SelectConfig(agents=("help*",)), "emitted"),
        (SelectConfig(services=("shop",), agents=("other",)), "not_selected"),
        (SelectConfig(capture_all=True, from_ns=100), "not_selected"),
        (SelectConfig(capture_all=True, from_ns=50, until_ns=51), "emitted"),
        (SelectConfig(capture_all=True, until_ns=50), "not_selected"),
    ],
)
def test_what_is_taken_besides_own_rollouts(select: SelectConfig, disposition: str) -> None:
    """By default nothing; the marker accounts for its calls."""
    streams = Streams(config(select=select))
    streams.feed(captured(started_at_ns=60), otlp(agent_span(CAPTURED, 1, "helper", at=50), service="shop"))
    streams.tick(0.0, 10.0)
    assert [(m.disposition, m.num_calls) for m in markers(streams)] == [(disposition, 1)]
    assert len(streams.episodes) == (disposition == "emitted")


def reasons(streams: Streams) -> list[str]:
    """Why there are dead letters."""
    return [dead_letter_fields(record.headers)["reason"] for record in streams.log.get(Topic.DEAD_LETTERS, [])]


def test_calls_of_one_episode_are_bounded() -> None:
    """Those above the bound are dead letters; its end is still taken, and it closes by deadline."""
    streams = Streams(config(max_calls_per_episode=2, incomplete_s=1.0))
    calls = [A, B, call("c", R1)]
    streams.feed(*calls, closed(R1, calls), reward(R1), event(R1))
    assert reasons(streams) == ["too_many_calls"]
    streams.tick(0.0, 1.0)
    episode = streams.episode
    assert (len(episode.calls), episode.closed_by, episode.reward) == (2, "deadline", 1.0)


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [({"max_spans_per_episode": 3}, "too_many_spans"), ({"max_bytes_per_episode": 1800}, "too_many_bytes")],
)
def test_spans_displace_no_call(bounds: dict[str, Any], reason: str) -> None:
    """At the bound of spans and rewards, in number or in bytes, every call is still taken, and the grader's reward."""
    streams = Streams(config(incomplete_s=1.0, **bounds))
    flood = [otlp(span(R1 + "a001", n, "x" * 150)) for n in range(1, 20)]
    calls = [A, B]
    streams.feed(*flood, reward(R1, 5.0, source="anonymous"), *calls, closed(R1, calls), reward(R1))
    streams.feed(event(R1, spans_exported=len(flood)))
    streams.tick(0.0, 1.0)
    episode = streams.episode
    assert (len(episode.calls), episode.closed_by, episode.reward) == (2, "deadline", 1.0)
    assert set(reasons(streams)) == {reason}
    summary, rows = streams.groups[0]
    assert (summary.members[0].excluded, sum(len(row.turns) for row in rows)) == ("", 2)


def test_bytes_of_all_open_episodes_are_bounded() -> None:
    """Spans first; what is closed makes room."""
    streams = Streams(config(max_open_bytes=4000))
    for number in range(1, 20):
        streams.feed(otlp(span(rollout(number) + "a001", 1, "x" * 150)))
    assert set(reasons(streams)) == {"too_many_open_bytes"}
    num_refused = len(reasons(streams))
    streams.feed(A, closed(R1, [A]), reward(R1), event(R1))
    assert [episode.episode_id for episode in streams.episodes] == [R1 + "a001"]
    streams.feed(otlp(span(rollout(19) + "a001", 1, "x" * 150)))
    assert len(reasons(streams)) == num_refused


def test_nobody_takes_the_room_of_other_agents() -> None:
    """Spans without a credential in any number of a runner's episodes get a quarter of what all may hold."""
    streams = Streams(config(max_open_bytes=8_000))
    for number in range(1, 30):
        streams.feed(otlp(span(rollout(number) + "a001", 1, "x" * 150)), holder=Holder(""))
    num_refused = len(reasons(streams))
    assert 0 < num_refused < 28
    for number in range(1, 6):
        streams.feed(otlp(span(rollout(number) + "a001", 2, "x" * 150)))
    assert len(reasons(streams)) == num_refused


def test_bytes_of_one_episode_are_bounded() -> None:
    """A few huge calls are as bad as many."""
    streams = Streams(config(max_bytes_per_episode=2000))
    streams.feed(call("a", R1, list(range(1000))))
    assert reasons(streams) == ["too_many_bytes"]


def test_open_episodes_are_bounded() -> None:
    """The longest-silent stray is proposed for closing; at the bound itself, new ones are dead letters."""
    streams = Streams(config(max_open_episodes=2, select=SelectConfig(capture_all=True)))
    streams.feed(captured("a"), event(R1, RolloutState.STARTED), event(rollout(2), RolloutState.STARTED))
    assert reasons(streams) == ["too_many_open"]
    streams.tick(0.0)
    assert [(e.episode_id, e.closed_by) for e in streams.episodes] == [(CAPTURED, "bound")]
    streams.feed(event(rollout(2), RolloutState.STARTED))
    assert reasons(streams) == ["too_many_open"]


def test_an_episode_above_the_message_limit_goes_out_without_calls() -> None:
    """Its group must close all the same."""
    streams = Streams(topics=msgspec.structs.replace(TOPICS, max_message_bytes={"episodes": 128 * 1024}))
    big = call("a", R1, list(range(20_000)))
    streams.feed(big, closed(R1, [big]), reward(R1), event(R1))
    episode = streams.episode
    assert (episode.calls, episode.calls_omitted, episode.reward) == ((), "too_large", 1.0)
    assert "[kafka.max_message_bytes] episodes = " in (episode.error or "")
    assert reasons(streams) == ["too_large"]
    summary, _ = streams.groups[0]
    assert summary.members[0].excluded == "too_large"


def test_a_nan_temperature_does_not_spoil_the_record() -> None:
    """JSON has no NaN, and credit must be able to read the episode."""
    odd = call("a", R1, [1], [2], sampling_used=SamplingParameters(temperature=float("nan")))
    streams = Streams()
    streams.feed(odd, closed(R1, [odd]), reward(R1), event(R1))
    _, (row,) = streams.groups[0]
    assert row.turns[0].masked == "bad_temperature"


def test_proposals_are_not_repeated_at_every_look() -> None:
    """Once, and again only when it seems lost."""
    streams = Streams()
    streams.feed(captured())
    fold = streams.assemble
    fold.propose(0.0)
    assert [len(fold.propose(now_s)) for now_s in (10.0, 10.5, 20.0, 40.0)] == [1, 0, 0, 1]


def test_an_unreadable_fact_is_a_dead_letter() -> None:
    """The partition goes on; as only normalize writes there, both wait for a record that shows that it can be read."""
    streams = Streams()
    streams.append(Topic.EPISODE_EVENTS, b"\xc1")
    streams.append(Topic.EPISODE_EVENTS, None)
    assert (reasons(streams), len(streams.done)) == ([], 0)
    streams.feed(event(rollout(1), RolloutState.STARTED))
    assert reasons(streams) == ["malformed", "null_value"]
    assert len([place for place in streams.done if place[0].endswith("episode_events")]) == 2


@pytest.mark.slow
def test_an_episode_of_ten_thousand_turns_trains_in_full() -> None:
    """Beside three spans a turn, which is more than are taken; its prompts sum to 600 MB."""
    num_turns = 10_000
    streams = Streams(config(incomplete_s=1.0))
    for start in range(0, 3 * num_turns, 500):
        streams.feed(otlp(*(span(R1 + "a001", 1 + n) for n in range(start, start + 500))))
    calls = chain(R1, num_turns)
    streams.feed(*calls, closed(R1, calls), reward(R1), event(R1, spans_exported=3 * num_turns))
    streams.tick(0.0, 1.0)
    summary, rows = streams.groups[0]
    assert (summary.excluded, summary.members[0].excluded) == ("", "")
    (row,) = rows
    assert (len(row.turns), int(row.loss_mask.sum()), len(row.token_ids)) == (num_turns, num_turns, 3 * num_turns)
    assert set(reasons(streams)) == {"too_many_spans"}
