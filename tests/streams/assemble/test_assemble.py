"""Episodes close once, by what the records say; the clock only proposes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.streams.make import (
    GROUP,
    Item,
    Streams,
    agent_span,
    call,
    call_id,
    closed,
    config,
    event,
    llm_span,
    otlp,
    reward,
    rollout,
    span,
    tool_call,
    tool_span,
)
from tracegrad.schemas.metrics import FACTS_LATE
from tracegrad.schemas.records.calls import CallOutcome
from tracegrad.schemas.records.episodes import CLOSED, ClosedMarker, Episode
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.air.rules import AirRule
from tracegrad.streams.config import StreamRules

R1 = rollout(1)
OWN = R1 + "a001"
A, B = call("a", R1, [1], [2]), call("b", R1, [1], [3])
AIR = (AirRule(name="ok", status="succeeded", value=0.5, cap=2),)


def markers(streams: Streams) -> list[ClosedMarker]:
    """What was closed."""
    return [CLOSED.decode(value) for value in streams.values(Topic.CLOSED_EPISODES)]


def one(*items: Any, settings: StreamRules | None = None) -> Episode:
    """The single episode of these raw items."""
    streams = Streams(settings)
    streams.feed(*items)
    episode = streams.episode
    return episode


def test_an_episode_waits_for_everything_that_was_counted() -> None:
    """Each of its parts alone keeps it open; the last one closes it, whichever it is."""
    spans = otlp(span(OWN, 1), span(OWN, 2))
    parts: list[Item] = [A, B, closed(R1, [A, B]), spans, reward(R1), event(R1, spans_exported=2)]
    for last in range(len(parts)):
        streams = Streams()
        streams.feed(*(part for number, part in enumerate(parts) if number != last))
        assert streams.episodes == [], f"closed without {parts[last]!r}"
        streams.feed(parts[last])
        episode = streams.episode
        assert (episode.closed_by, episode.reward, len(episode.calls), episode.num_spans) == ("complete", 1.0, 2, 2)
        assert {offset for topic, offset in streams.done if topic == "test.episode_events"} == set(range(len(parts)))


def test_spans_of_another_process_do_not_fill_the_count() -> None:
    """A traced tool server shares the trace id; the host's own tool span still comes before the close, and pays."""
    asked = call("a", R1, [1], [2], tool_calls=(tool_call("1"),))
    served = otlp(span(OWN, 8, parent=2), span(OWN, 9, parent=8), service="tools")
    own = [agent_span(OWN, 1, "x"), tool_span(OWN, 2, parent=1, gen_ai__tool__call__id="call_1")]
    end = event(R1, spans_exported=2, spans_marked=True)
    streams = Streams(config(air=AIR))
    streams.feed(asked, closed(R1, [asked]), reward(R1), served, end, otlp(own[0], is_counted=True))
    assert streams.episodes == []
    # The same span by way of a Collector: in either order one place, and counted.
    streams.feed(otlp(own[1]))
    assert streams.episodes == []
    streams.feed(otlp(own[1], is_counted=True))
    episode = streams.episode
    assert (episode.closed_by, episode.num_spans) == ("complete", 4)
    assert [r.value for r in episode.calls[0].rewards] == [0.5]


def test_without_marks_every_span_counts() -> None:
    """Records of a runner that did not mark its spans, and a replay of them."""
    parts: list[Item] = [A, closed(R1, [A]), reward(R1), otlp(span(OWN, 1))]
    assert one(*parts, event(R1, spans_exported=1)).closed_by == "complete"
    streams = Streams()
    streams.feed(*parts, event(R1, spans_exported=1, spans_marked=True))
    assert streams.episodes == []


def test_the_record_repeats_what_credit_needs() -> None:
    """Group, task, policy, purpose and the attempt come from the rollout's event."""
    episode = one(closed(R1, []), reward(R1, 0.25), event(R1, attempt_number=2, duration_s=1.5, error="none"))
    assert (episode.rollout_id, episode.attempt_id, episode.attempt_number, episode.group) == (R1, "a001", 2, GROUP)
    assert (episode.task_id, episode.policy, episode.is_final, episode.duration_s) == ("task-1", "policy", True, 1.5)
    assert (episode.state, episode.reward) == (RolloutState.SUCCEEDED, 0.25)


def test_late_facts_are_counted_and_never_folded() -> None:
    """Done at once: nothing waits for them."""
    streams = Streams()
    streams.feed(A, closed(R1, [A]), reward(R1), event(R1), B, otlp(span(OWN, 1), span(OWN, 2)))
    assert len(streams.episodes) == 1
    assert streams.assemble.metrics.value(FACTS_LATE) == 3
    assert streams.assemble.metrics.value(FACTS_LATE, "calls") == 1
    assert streams.assemble.num_open == 0


def test_closed_ids_survive_a_restart() -> None:
    """Markers are read first; then a re-delivery is late, not a second, truncated episode."""
    streams = Streams()
    parts: list[Item] = [A, closed(R1, [A]), reward(R1), event(R1)]
    streams.feed(*parts)
    streams.take_over()
    streams.feed(*parts)
    assert len(streams.episodes) == 1


def test_a_restart_before_the_marker_emits_the_same_bytes() -> None:
    """Output sent, marker not: all inputs come again."""
    streams = Streams()
    parts: list[Item] = [A, closed(R1, [A]), reward(R1), event(R1)]
    streams.feed(*parts)
    streams.assemble.reset()
    streams.feed(*parts)
    first, second = streams.values(Topic.EPISODES)
    assert first == second


@pytest.mark.parametrize(
    "end",
    [{"spans_exported": None}, {"spans_exported": 1, "spans_lost": 2}, {"calls_closed": False}],
    ids=["uncounted", "lost", "forgotten"],
)
def test_what_was_not_counted_needs_the_deadline(end: dict[str, Any]) -> None:
    """The clock proposes on the log, the fold acts on the record."""
    streams = Streams(config(deadline_s=5.0))
    streams.feed(A, closed(R1, [A]), reward(R1), otlp(span(OWN, 1)), event(R1, **end))
    streams.tick(100.0, 104.9)
    assert streams.episodes == []
    streams.tick(105.0)
    episode = streams.episode
    assert (episode.closed_by, len(episode.calls), episode.reward) == ("deadline", 1, 1.0)


def test_counted_facts_have_a_longer_deadline() -> None:
    """They were acknowledged, so they are on their way: a stage may be restarting."""
    streams = Streams(config(deadline_s=5.0, incomplete_s=120.0))
    streams.feed(A, closed(R1, [A, B]), reward(R1), event(R1, spans_lost=1))
    streams.tick(100.0, 219.0)
    assert streams.episodes == []
    streams.tick(220.0)
    assert streams.episodes[0].closed_by == "deadline"


def test_a_running_attempt_has_no_deadline() -> None:
    """Its runner will write the end, also after a restart."""
    streams = Streams()
    streams.feed(event(R1, RolloutState.STARTED), A)
    streams.tick(0.0, 1e6)
    assert streams.episodes == []


def test_a_rollout_whose_events_are_late_is_not_idle() -> None:
    """Spans and events travel on different topics; only a long silence closes it."""
    streams = Streams(config(idle_s=10.0, orphan_s=600.0))
    streams.feed(A)
    streams.tick(0.0, 599.0)
    assert streams.episodes == []
    streams.tick(600.0)
    episode = streams.episode
    assert (episode.closed_by, episode.is_final, episode.state) == ("idle", False, RolloutState.UNKNOWN)


def test_aborted_attempts_close_without_spans_and_rewards() -> None:
    """Whether they came before the end is chance, so they are left out, also of the call that a reward targets."""
    bare = one(A, closed(R1, [A]), event(R1, RolloutState.ABORTED, is_final=False, spans_exported=5))
    full = one(
        otlp(agent_span(OWN, 1, "x")), reward(R1), reward(R1, name="step", target=A.call_id), A, closed(R1, [A]),
        event(R1, RolloutState.ABORTED, is_final=False, spans_exported=5),
    )  # fmt: skip
    assert bare == full
    assert (bare.reward, bare.unscored, len(bare.calls), bare.is_final) == (None, "aborted", 1, False)


def test_a_given_up_rollout_is_an_episode_without_calls() -> None:
    """So that its group closes."""
    episode = one(event(R1, RolloutState.GIVEN_UP, attempt_id="0000"))
    assert (episode.episode_id, episode.calls, episode.is_final) == (R1 + "0000", (), True)
    assert (episode.reward, episode.unscored) == (None, "given_up")


def test_only_authorised_rewards_count() -> None:
    """What an agent posts itself is neither counted nor waited for, and displaces nothing."""
    forged = reward(R1, 100.0, source="anonymous", at_ms=99)
    streams = Streams()
    streams.feed(forged, closed(R1, []), event(R1))
    assert streams.episodes == []
    streams.feed(reward(R1, 0.5, at_ms=1))
    episode = streams.episode
    assert (episode.reward, episode.num_unauthorised_rewards, len(episode.rewards)) == (0.5, 1, 1)


def test_rewards_of_several_names_add_up() -> None:
    """In canonical order; the names that were awaited, no others."""
    names: dict[str, Any] = {"rewards_awaited": ("right", "short")}
    parts: list[Item] = [
        reward(R1, 1.0, name="right"),
        reward(R1, 0.1, name="short"),
        closed(R1, []),
        event(R1, **names),
    ]
    assert one(*parts).reward == 1.1
    assert one(reward(R1, 7.0, name="other"), *parts) == one(*parts)


@pytest.mark.parametrize(
    ("given", "unscored"),
    [
        ([reward(R1, None, reason="grader raised ValueError")], "grader raised ValueError"),
        ([reward(R1, None)], "unscored"),
        ([reward(R1, 1e300)], "out_of_range"),
        ([reward(R1, 1.0), reward(R1, None, name="short", reason="late")], "late"),
    ],
)
def test_a_missing_reward_is_never_zero(given: list[Any], unscored: str) -> None:
    """It is unscored, with the reason."""
    names = tuple(item.name for item in given)
    episode = one(closed(R1, []), *given, event(R1, rewards_awaited=names))
    assert (episode.reward, episode.unscored) == (None, unscored)


def test_a_reward_that_never_comes_is_named() -> None:
    """By the safety net."""
    streams = Streams(config(incomplete_s=1.0))
    streams.feed(closed(R1, []), event(R1))
    streams.tick(0.0, 2.0)
    episode = streams.episode
    assert (episode.reward, episode.unscored) == (None, "missing: reward")


def test_a_reward_may_target_a_call() -> None:
    """It belongs to that call and not to the episode's sum; it counts when its name is awaited, as any other."""
    step = reward(R1, 0.25, name="step", target=call_id("a"))
    parts: list[Item] = [A, closed(R1, [A]), reward(R1, 1.0), step]
    episode = one(*parts, event(R1, rewards_awaited=("reward", "step")))
    assert episode.reward == 1.0
    assert [(r.rule, r.value) for r in episode.calls[0].rewards] == [("step", 0.25)]
    not_awaited = one(*parts, event(R1, rewards_awaited=("reward",)))
    assert not_awaited.calls[0].rewards == ()


def test_turns_are_counted_per_agent_in_the_order_of_the_log() -> None:
    """Two agents, interleaved; the spans say who spoke, the log in which order."""
    calls = [call(name, R1, [1], [2]) for name in "abcd"]
    spans = [agent_span(OWN, 1, "planner"), agent_span(OWN, 2, "coder", parent=1)]
    spans += [llm_span(OWN, 10 + n, name, parent=1 if name in "ac" else 2) for n, name in enumerate("abcd")]
    episode = one(*calls, closed(R1, calls), reward(R1), otlp(*spans), event(R1, spans_exported=6))
    assert [(c.agent, c.turn, c.joined_by) for c in episode.calls] == [
        ("planner", 0, "response_id"),
        ("coder", 0, "response_id"),
        ("planner", 1, "response_id"),
        ("coder", 1, "response_id"),
    ]


@pytest.mark.parametrize("lost", [{0}, {1}, {2}, {0, 1}, {0, 2}])
def test_a_missing_span_moves_no_call_to_another_turn(lost: set[int]) -> None:
    """One agent: whichever calls left no span, each is compared with the same turn of its peers."""
    calls = [call(name, R1, [1], [2]) for name in "abc"]
    spans = [llm_span(OWN, 10 + n, name, parent=1) for n, name in enumerate("abc") if n not in lost]
    sent = otlp(agent_span(OWN, 1, "solver"), *spans)
    end = event(R1, spans_exported=1 + len(spans))
    episode = one(*calls, closed(R1, calls), reward(R1), sent, end)
    assert [c.turn for c in episode.calls] == [0, 1, 2]
    assert {c.agent for c in episode.calls} == {"solver"}
    assert episode.num_named_by == {"agent_span": 3 - len(lost), "sole_agent": len(lost)}


def test_a_missing_span_moves_no_call_of_another_agent() -> None:
    """Two agents: nobody knows whose call it was, so it counts for none of them."""
    calls = [call(name, R1, [1], [2]) for name in "abcd"]
    spans = [agent_span(OWN, 1, "planner"), agent_span(OWN, 2, "coder", parent=1)]
    spans += [llm_span(OWN, 10 + n, name, parent=1 if name == "a" else 2) for n, name in enumerate("abcd") if n != 2]
    episode = one(*calls, closed(R1, calls), reward(R1), otlp(*spans), event(R1, spans_exported=5))
    assert [(c.agent, c.turn) for c in episode.calls] == [("planner", 0), ("coder", 0), (None, 0), ("coder", 1)]


@pytest.mark.parametrize("outcome", [CallOutcome.SUPERSEDED, CallOutcome.CLIENT_DISCONNECTED])
def test_a_retried_call_moves_no_later_call_to_another_turn(outcome: CallOutcome) -> None:
    """The answer that the client did not take and the one it took are the same turn."""
    calls = [call(name, R1, [1], [2]) for name in "abc"]
    episode = one(*calls, closed(R1, calls, a=outcome), reward(R1), event(R1))
    assert [c.turn for c in episode.calls] == [0, 0, 1]


def test_air_pays_the_call_that_asked_for_the_tool() -> None:
    """First turn's tool works, second turn's fails."""
    calls = [
        call("a", R1, [1], [2], tool_calls=(tool_call("1"),)),
        call("b", R1, [1, 2], [3], tool_calls=(tool_call("2"),)),
    ]
    spans = [
        agent_span(OWN, 1, "calculator"),
        tool_span(OWN, 2, parent=1, gen_ai__tool__call__id="call_1"),
        tool_span(OWN, 3, parent=1, gen_ai__tool__call__id="call_2", gen_ai__tool__call__result="error: syntax"),
    ]
    parts: list[Item] = [*calls, closed(R1, calls), reward(R1)]
    episode = one(*parts, otlp(*spans), event(R1, spans_exported=3), settings=config(air=AIR))
    assert [[(r.rule, r.value) for r in c.rewards] for c in episode.calls] == [[("air:ok", 0.5)], []]
    assert [[t.status_from for t in c.tools] for c in episode.calls] == [["span_status"], ["text"]]
    assert (episode.num_tools, episode.num_tools_succeeded, episode.reward) == (2, 1, 1.0)
    without_spans = one(*parts, event(R1), settings=config(air=AIR))
    assert [c.rewards for c in without_spans.calls] == [(), ()]
