"""Why attempts have nothing to train on: told by what can be mended, and what of it stops a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas.attempts import call, episode
from tracegrad.schemas.alarms.causes import Cause, Causes
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import AppliedReward, Episode
from tracegrad.schemas.records.rollouts import RolloutState

PAID = AppliedReward(rule="air:tool", value=1.0)
RAISES = {"reward": None, "unscored": "grader raised KeyError at my grade.py:9: 'x'"}
BREAKS = {"state": RolloutState.FAILED, "reward": 0.0, "error": "agent raised TypeError at agent.py:7: None"}


def causes(*episodes: Episode) -> Causes:
    """Of them."""
    found = Causes("policy")
    for one in episodes:
        found.add_episode(one)
    return found


def stopping(num: int = 16, **fields: Any) -> Cause | None:
    """Of so many attempts at two tasks."""
    return causes(*(episode(f"t{number % 2}", **fields) for number in range(num))).stopping(0)


STOPPING: dict[str, tuple[dict[str, Any], str, str]] = {
    "grader raises": (RAISES, Reason.GRADER_RAISED, "KeyError at my grade.py:9"),
    "agent raises": (BREAKS, Reason.AGENT_RAISED, "TypeError at agent.py:7"),
    "no call": ({"calls": (), "reward": 0.0}, Reason.NO_CALLS, ""),
    "agent raises, and is not rated": (
        BREAKS | {"reward": None, "unscored": "grader returned None"},
        Reason.AGENT_RAISED,
        "TypeError at agent.py:7",
    ),
    "no call, and the grader raises": (RAISES | {"calls": ()}, Reason.NO_CALLS, ""),
    "agent raises before a call": (
        BREAKS | {"calls": (), "reward": None},
        Reason.AGENT_RAISED,
        "TypeError at agent.py:7",
    ),
    "a limit before a call": (
        BREAKS | {"calls": (), "error": "agent raised MaxTurns: 0"},
        Reason.AGENT_RAISED,
        "MaxTurns",
    ),
    "no prompt ids": ({"calls": (call("no_prompt_ids"),)}, "no_prompt_ids", ""),
    "time limit before a call": (
        {"state": RolloutState.TRUNCATED, "calls": (), "error": "time limit"},
        Reason.NO_CALLS,
        "",
    ),
}


@pytest.mark.parametrize("case", STOPPING.values(), ids=STOPPING)
def test_what_no_training_mends_stops_a_run(case: tuple[dict[str, Any], str, str]) -> None:
    """Once it is the cause of 16 attempts at two tasks; held-out ones count too."""
    fields, reason, key = case
    found = stopping(**fields)
    assert found is not None and (found.reason, found.key, found.attempts, found.of) == (reason, key, 16, 16)
    assert stopping(**fields, purpose=Purpose.VALIDATION) == found
    assert stopping(15, **fields) is None
    assert causes(*(episode(**fields) for _ in range(20))).stopping(0) is None
    many = causes(*(episode(f"t{number}", **fields) for number in range(20)))
    assert many.stopping(20) is not None and many.stopping(21) is None
    assert causes(episode("t1"), *(episode(f"t{number}", **fields) for number in range(20))).stopping(0) is None


GOES_ON: dict[str, dict[str, Any]] = {
    "it trains": {},
    "reward 0": {"reward": 0.0},
    "truncated answers": {"calls": (call(Reason.TRUNCATED),), "reward": 0.0},
    "time limit with calls": {"state": RolloutState.TRUNCATED, "reward": 0.0, "error": "time limit"},
    "the model's answer could not be read": BREAKS | {"error": "agent raised JSONDecodeError at agent.py:7: x"},
    "too many turns": BREAKS | {"error": "agent raised MaxTurnsExceeded at agent.py:7: 8"},
    "tools succeed on the way": BREAKS | {"calls": (call(rewards=(PAID,)),)},
    "a grader that gives nothing": {"reward": None, "unscored": "grader returned None"},
    "a command that fails": {"state": RolloutState.FAILED, "reward": 0.0, "error": "exit status 1"},
    "our own fault": {"state": RolloutState.ABORTED, "reward": None, "calls": (), "error": "the engine is away"},
    "given up": {"state": RolloutState.GIVEN_UP, "reward": None, "calls": ()},
}


@pytest.mark.parametrize("fields", GOES_ON.values(), ids=GOES_ON)
def test_what_training_may_mend_stops_none(fields: dict[str, Any]) -> None:
    """However many attempts end by it."""
    assert stopping(500, **fields) is None


@given(st.lists(st.sampled_from([*GOES_ON.values(), *(fields for fields, _, _ in STOPPING.values())]), max_size=60))
def test_no_mixture_stops_a_run(chosen: list[dict[str, Any]]) -> None:
    """A run of which any attempt trained, or ended by another cause, goes on."""
    episodes = [episode("good"), *(episode(f"t{number}", **fields) for number, fields in enumerate(chosen))]
    assert causes(*episodes, episode("good")).stopping(0) is None


def test_a_message_is_no_key_and_the_first_is_the_example() -> None:
    """A grader words every failure anew; its line is one."""
    raised = [f"grader raised ValueError at grade.py:4: no {number}\n{'x' * 400}" for number in range(80)]
    (found,) = causes(*(episode(reward=None, unscored=one) for one in raised)).found()
    assert (found.key, found.attempts, found.example[:5], len(found.example)) == (
        "ValueError at grade.py:4",
        80,
        "no 0\n",
        300,
    )
    assert found.text.startswith("grader_raised: 80 of 80 attempts: ValueError at grade.py:4 (no 0 xxx")
    assert found.text.endswith("Mend it at the line that is named; no attempt gets a reward before that.")
    assert "\n" not in found.text


def test_the_table_of_causes_stays_small() -> None:
    """Of code that raises somewhere else each time."""
    raised = (f"agent raised ValueError at agent.py:{number}: x" for number in range(1000))
    found = causes(*(episode(state=RolloutState.FAILED, error=one) for one in raised)).found()
    assert len(found) <= 51 and sum(one.attempts for one in found) == 1000
    assert (found[0].key, found[0].example) == ("", "")
