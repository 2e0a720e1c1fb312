"""What other rules would have made of a history, by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.assemble.test_air import turn
from tests.streams.credit.test_credit import member
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.streams.assemble.air.apply import apply_air
from tracegrad.streams.assemble.air.rules import AirConfig, AirRule
from tracegrad.streams.compare import Side, compare
from tracegrad.streams.credit.config import CreditConfig

OK = AirRule(name="ok", status="succeeded", value=0.5)


def side(*rules: AirRule) -> Side:
    """The default credit under some rules."""
    air = AirConfig(rules=rules)
    return Side(lambda episode: apply_air(air, episode), CreditConfig().resolve())


def of_group(name: str, number: int, status: str, reward: float, size: int = 2) -> Episode:
    """One call, whose tool ended so."""
    call = msgspec.structs.replace(turn(status), call_id="c", agent="a")
    episode = member(number, calls=(call,), reward=reward, group=GroupRef(id=name, size=size, member=number, index=0))
    return msgspec.structs.replace(episode, episode_id=f"{name}{number}")


PAST = [
    of_group("flat", 0, "succeeded", 0.0),
    of_group("flat", 1, "failed", 0.0),
    of_group("told", 0, "failed", 0.5),
    of_group("told", 1, "succeeded", 0.0),
]


def test_a_rule_gives_spread_to_one_group_and_takes_it_from_another() -> None:
    """Returns 0 0 | .5 0 without it, .5 0 | .5 .5 with it. Ranks 1 1 3 1 and 2 0 2 2 (from 0): correlation 1 / 3;
    with a return of 1 more on both sides, 1 1 3 1 4 and 2 0 2 2 4: 3 / 4.
    """
    got = compare(PAST, side(), side(OK))
    assert (got.num_groups, got.num_calls, got.gained, got.lost) == (2, 4, ("flat",), ("told",))
    assert got.paid == ({}, {"air:ok a": 1.0})
    assert got.most == (("flat0", 0.5), ("told1", 0.5))
    assert got.rank_correlation == pytest.approx(1 / 3)
    best = of_group("best", 0, "failed", 1.0, size=1)
    assert compare([*PAST, best], side(), side(OK)).rank_correlation == pytest.approx(3 / 4)


def test_the_same_rules_change_nothing_whatever_the_order() -> None:
    """A correlation of 1, and no list."""
    got = compare(reversed(PAST), side(OK), side(OK))
    assert (got.gained, got.lost, got.most) == ((), (), ())
    assert got.rank_correlation == pytest.approx(1.0)
    assert compare([], side(), side(OK)).rank_correlation is None


def test_an_episode_that_was_written_twice_counts_once() -> None:
    """As by a worker that was killed; also behind its group."""
    twice = [PAST[0], *PAST, *PAST]
    assert compare(twice, side(), side(OK)) == compare(PAST, side(), side(OK))


@given(st.permutations(range(12)), st.lists(st.floats(-1, 1), min_size=12, max_size=12))
def test_the_order_of_the_records_changes_no_bit(order: list[int], rewards: list[float]) -> None:
    """Of groups that are whole and of one that lacks a member."""
    past = [
        of_group(f"g{at // 4}", at % 4, "succeeded" if at % 3 else "failed", rewards[at], size=4) for at in range(12)
    ]
    tenth = AirRule(name="tenth", status="succeeded", value=0.1)
    got = compare([past[at] for at in order if at != 5], side(), side(OK, tenth))
    assert got == compare([one for at, one in enumerate(past) if at != 5], side(), side(OK, tenth))
