"""An episode under another grader: what it is given, what takes the place of what, and what stays."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.make import Streams, call, call_id, closed, config, event, reward, rollout, tool_call
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.episodes import EPISODES, AppliedReward, Episode
from tracegrad.schemas.records.rollouts import Reward, RolloutState
from tracegrad.streams.regrade import given_to_grader, graded_anew, is_judged, why_ungradable

OWN = rollout(1)
GRADER = "grader:grade"
RULES = config(reward_sources=("grader:*", "people"))
CALLS = [
    call("one", OWN, [1, 2], [3, 4], content=None, tool_calls=(tool_call("t"),), finish_reason="tool_calls"),
    call("two", OWN, [5], [6], content="it is 42", reasoning="6 * 7", is_cut=True, ended_at_ns=20),
]


def episode(*rewards: Reward, state: RolloutState = RolloutState.SUCCEEDED, **end: Any) -> Episode:
    """An attempt of two calls, as assemble writes it; it awaits the names of its rewards."""
    streams = Streams(RULES)
    awaited = tuple(sorted({one.name for one in rewards}))
    told = {"output": json.dumps("it is 42"), "duration_s": 1.5, "rewards_awaited": awaited, **end}
    streams.feed(*CALLS, closed(OWN, CALLS), *rewards, event(OWN, state, **told))
    return streams.episode


def test_a_grader_is_given_what_the_runners_was() -> None:
    """What the agent returned, how it ended, and of each call what the agent saw, some of it from the call's record."""
    output, attempt = given_to_grader(episode(reward(OWN, 1.0)), CALLS)
    assert output == "it is 42"
    assert {name: value for name, value in attempt.items() if name != "calls"} == {
        "state": "succeeded",
        "error": None,
        "duration_s": 1.5,
    }
    tool = {"id": "call_t", "name": "calc", "arguments": "{}"}
    plain: dict[str, Any] = {"outcome": "delivered", "reasoning": None, "tool_calls": [], "is_cut": False}
    plain["stop_text"] = ""
    assert attempt["calls"] == [
        {
            **plain,
            "call_id": call_id("one"),
            "content": None,
            "tool_calls": [tool],
            "finish_reason": "tool_calls",
            "sampled_tokens": 2,
        },
        {
            **plain,
            "call_id": call_id("two"),
            "content": "it is 42",
            "reasoning": "6 * 7",
            "finish_reason": "stop",
            "sampled_tokens": 1,
            "is_cut": True,
        },
    ]


def test_the_new_reward_takes_the_place_of_the_graders_and_what_others_said_stays() -> None:
    """1 of the grader and .25 of people were 1.25; 0 of the new one makes .25."""
    by_people = reward(OWN, 0.25, name="style", source="people")
    before = episode(reward(OWN, 1.0), by_people)
    assert before.reward == 1.25
    after = graded_anew(before, [reward(OWN, 0.0, source="grader:strict")], replaced=(GRADER, "grader:strict"))
    assert (after.reward, after.unscored) == (0.25, "")
    assert [(one.name, one.source, one.value) for one in after.rewards] == [
        ("reward", "grader:strict", 0.0),
        ("style", "people", 0.25),
    ]


def test_what_it_gave_a_call_is_replaced_too() -> None:
    """By call, or by a tool call that it asked for."""
    step = reward(OWN, 0.5, name="step", target=call_id("two"))
    before = episode(reward(OWN, 1.0), step)
    assert [list(one.rewards) for one in before.calls] == [[], [AppliedReward(rule="step", value=0.5)]]
    given_now = [reward(OWN, 1.0), reward(OWN, -0.5, name="step", target="call_t")]
    after = graded_anew(before, given_now, replaced=(GRADER,))
    assert [list(one.rewards) for one in after.calls] == [[AppliedReward(rule="step", value=-0.5)], []]
    assert after.reward == 1.0


def test_one_that_cannot_be_graded_has_no_reward() -> None:
    """Neither the earlier grader's; also where people said something."""
    before = episode(reward(OWN, 1.0), reward(OWN, 0.25, name="style", source="people"))
    after = graded_anew(before, [], replaced=(GRADER,), why="output_too_large")
    assert (after.reward, after.unscored) == (None, "output_too_large")
    assert [one.source for one in after.rewards] == ["people"]


def test_where_the_agents_own_word_is_awaited_none_is_unscored() -> None:
    """As in the run that was."""
    after = graded_anew(episode(reward(OWN, 1.0)), [reward(OWN, 1.0)], replaced=(GRADER,), awaited=("agent",))
    assert (after.reward, after.unscored) == (None, "missing: agent")


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"output": "null"}, ""),
        ({"output": None, "output_sha256": "ab" * 32}, "output_too_large"),
        ({"output": None}, "output_not_recorded"),
    ],
)
def test_what_is_not_on_the_log_cannot_be_graded(end: dict[str, Any], why: str) -> None:
    """None that an agent returned is on it."""
    assert why_ungradable(episode(reward(OWN, 1.0), **end)) == why


def test_whoever_no_grader_judges_is_left_alone() -> None:
    """An attempt that broke off by our fault, an agent that no runner started."""
    graded = episode(reward(OWN, 1.0), state=RolloutState.FAILED)
    assert is_judged(graded)
    assert not is_judged(episode(state=RolloutState.ABORTED))
    assert not is_judged(msgspec.structs.replace(graded, rollout_id=None))


VALUES = st.none() | st.floats(-10, 10)


@given(
    st.dictionaries(st.sampled_from(["reward", "format", "style"]), VALUES, min_size=1),
    st.dictionaries(st.sampled_from([call_id("one"), call_id("two"), "call_t"]), st.floats(-1, 1)),
)
def test_a_grader_that_says_the_same_changes_no_byte(final: dict[str, float | None], steps: dict[str, float]) -> None:
    """Whenever it says so."""
    named = [reward(OWN, value, name=name, at_ms=5 + at) for at, (name, value) in enumerate(final.items())]
    named += [reward(OWN, value, name="step", target=target, at_ms=9) for target, value in steps.items()]
    before = episode(*named)
    later = [msgspec.structs.replace(one, at_ms=99) for one in named]
    assert EPISODES.encode(graded_anew(before, later, replaced=(GRADER,))) == EPISODES.encode(before)


def test_records_are_found_by_their_calls() -> None:
    """In whatever order they come."""
    before, backwards = episode(reward(OWN, 1.0)), list[CallRecord](reversed(CALLS))
    assert given_to_grader(before, backwards) == given_to_grader(before, CALLS)
