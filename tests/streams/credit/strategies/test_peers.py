"""Whom credit compares: the same turn of the same agent, whatever spans were lost; never two agents."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.streams.credit.test_credit import close, member
from tests.streams.credit.test_segments import call
from tests.streams.make import config
from tracegrad.schemas.records.episodes import EpisodeCall
from tracegrad.schemas.records.rollouts import PeersRule
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.streams.credit.config import CreditConfig


def calls(*spoken: tuple[str | None, int]) -> tuple[EpisodeCall, ...]:
    """A call for each agent and turn."""
    return tuple(call(f"c{n}", [1], [10 + n], agent=agent, turn=turn) for n, (agent, turn) in enumerate(spoken))


def peers(*members: tuple[EpisodeCall, ...], **changes: Any) -> list[list[str]]:
    """The peers of each member's calls, in the order of the calls; `changes` are keys of `[credit]`."""
    episodes = [member(number, size=len(members), calls=made) for number, made in enumerate(members)]
    _, rows = decode_group(close(*episodes, settings_=config(credit=CreditConfig(**changes))).outputs[0].value)
    by_rollout: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        by_rollout.setdefault(row.rollout_id, []).extend((turn.call_id, turn.peers) for turn in row.turns)
    return [[named for _, named in sorted(turns)] for _, turns in sorted(by_rollout.items())]


def test_two_agents_are_never_peers() -> None:
    """A planner's first turn and a coder's first turn are worth different things."""
    team = calls(("planner", 0), ("coder", 0), ("coder", 1), ("planner", 1))
    assert peers(team, team) == [["planner:0", "coder:0", "coder:1", "planner:1"]] * 2


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (calls(("solver", 0), (None, 1)), ["solver:0", "solver:1"]),
        (calls((None, 0), (None, 1)), ["solver:0", "solver:1"]),
    ],
    ids=["one span of two lost", "all spans lost"],
)
def test_a_lost_span_costs_no_comparison(made: tuple[EpisodeCall, ...], expected: list[str]) -> None:
    """Where only one agent is named, the unnamed calls are its own."""
    assert peers(made, calls(("solver", 0), ("solver", 1)))[0] == expected


def test_unnamed_agents_are_one_agent_and_the_record_says_so() -> None:
    """Nobody knows whose calls they were, so they are compared with each other: an empty name."""
    team = calls(("planner", 0), (None, 0), ("coder", 0), (None, 1))
    assert peers(team, calls((None, 0))) == [["planner:0", ":0", "coder:0", ":1"], [":0"]]


def test_an_agent_may_bear_any_name() -> None:
    """The turn is what follows the last colon."""
    odd = msgspec.structs.replace(calls(("a:1", 0))[0], call_id="odd")
    assert peers((*calls(("a", 1)), odd), calls(("b", 0)))[0] == ["a:1", "a:1:0"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("turn_or_end", ["a:0", "b:0", "a:1"]), ("turn", ["a:0", "b:0", "a:1"]), ("rollout", ["a", "b", "a"])],
)
def test_the_rule_is_chosen_and_the_record_says_which(rule: PeersRule, expected: list[str]) -> None:
    """Whatever the rule, agents stay apart."""
    made = calls(("a", 0), ("b", 0), ("a", 1))
    assert peers(made, made, peers=rule)[0] == expected
    emission = close(member(0, size=1, calls=made), settings_=config(credit=CreditConfig(peers=rule)))
    assert decode_group(emission.outputs[0].value)[0].peers == rule
