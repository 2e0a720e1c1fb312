"""From episodes to advantages: what credit's peers give in the trainer, by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from tests.streams.credit.strategies.test_strategies import walk
from tests.streams.credit.test_credit import close, member, turns
from tests.streams.credit.test_segments import call
from tests.streams.make import config, rollout
from tests.trainer.material import group_in
from tracegrad.schemas.records.episodes import AppliedReward, Episode
from tracegrad.streams.credit.config import CreditConfig
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.batch.advantages import call_advantages
from tracegrad.trainer.batch.groups import CallKey
from tracegrad.trainer.batch.rows import rollout_tokens

pytestmark = pytest.mark.torch


def advantages(*episodes: Episode, recipe: Recipe = RECIPES[DEFAULT].recipe, **changes: Any) -> dict[CallKey, float]:
    """Of each call of a group; `changes` are keys of `[credit]`."""
    rules = config(credit=CreditConfig(**changes))
    group = group_in(close(*episodes, settings_=rules).outputs[0].value)
    return call_advantages([group], recipe, rollout_tokens([group]))[0]


def test_equal_rollouts_of_two_agents_train_nothing() -> None:
    """Both earn the planner .5 and end with 1: nothing tells the one from the other."""
    earned = (AppliedReward(rule="air:ok", value=0.5),)
    team = (call("plan", [1], [2], agent="planner", rewards=earned), call("code", [3], [4], agent="coder"))
    assert set(advantages(member(0, calls=team), member(1, calls=team)).values()) == {0.0}


def deciding_third_turn() -> list[Episode]:
    """Four of eight go on to a third turn and succeed; four stop after two turns, for nothing."""
    long = [member(n, size=8, calls=turns(0.0, 0.0, 0.0)) for n in range(4)]
    return long + [member(n, size=8, calls=turns(0.0, 0.0), reward=0.0) for n in range(4, 8)]


def test_a_turn_that_only_the_successful_reach_is_trained() -> None:
    """b = (3 * 1 + 4 * 0) / 7: the deciding turn gets 4/7, as the turns that led to it."""
    got = advantages(*deciding_third_turn())
    assert [got[rollout(0), name] for name in ("c0", "c1", "c2")] == pytest.approx([4 / 7] * 3)
    assert [got[rollout(7), name] for name in ("c0", "c1")] == pytest.approx([-4 / 7] * 2)
    assert (rollout(7), "c2") not in got


@pytest.mark.parametrize(("rule", "third"), [("turn_or_end", 4 / 7), ("turn", 0.0), ("rollout", 4 / 7)])
def test_the_other_rules_by_hand(rule: str, third: float) -> None:
    """docs/training.md has the same numbers."""
    assert advantages(*deciding_third_turn(), peers=rule)[rollout(0), "c2"] == pytest.approx(third)


def test_by_rollout_a_bonus_is_held_against_what_follows_it() -> None:
    """Returns 1.5 and 1, twice: the mean is 1.25, where turn by turn nothing tells the rollouts apart."""
    equal = [member(n, calls=turns(0.5, 0.0)) for n in range(2)]
    assert [*advantages(*equal, peers="rollout").values()] == [0.25, -0.25] * 2
    assert {*advantages(*equal).values()} == {0.0}


def test_an_excluded_member_is_no_peer() -> None:
    """What has no score, or was our own fault, is never 0."""
    unscored = member(1, size=3, reward=None, calls=turns(0.0))
    worse = member(2, size=3, reward=0.5, calls=turns(0.0))
    got = advantages(member(0, size=3, calls=turns(0.0, 0.0)), unscored, worse)
    assert got == {(rollout(0), "c0"): 0.5, (rollout(0), "c1"): 0.5, (rollout(2), "c0"): -0.5}


def test_mt_grpo_adds_the_outcome_to_what_a_turn_earned() -> None:
    """Rollout 0 earns .5 by its first turn and ends with 0, rollout 1 nothing and 1. Of two numbers (x - mean) / std is
    +-1/sqrt(2): the first turns have both and come to 0, the last ones have the outcome alone."""
    got = advantages(
        member(0, reward=0.0, calls=turns(0.5, 0.0)),
        member(1, calls=turns(0.0, 0.0)),
        strategy="turn",
        recipe=RECIPES["mt_grpo"].recipe,
    )
    half = 0.5**0.5
    assert [got[rollout(0), "c0"], got[rollout(1), "c0"]] == pytest.approx([0.0, 0.0])
    assert [got[rollout(0), "c1"], got[rollout(1), "c1"]] == pytest.approx([-half, half])


def test_gigpo_compares_in_the_group_and_in_the_state() -> None:
    """Rollouts see 1, 7, 9 and 1, 8, 9 and end with 1 and 0, gamma .5: in states 1 and 9 both are compared, in 7 and 8
    nobody is. By no scale: A(R) = +-.5; in state 1 the returns .25 and 0 give +-.125, in 9 1 and 0 +-.5."""
    recipe = msgspec.structs.replace(RECIPES["gigpo"].recipe, scale="none")
    rollouts = (member(0, calls=walk(1, 7, 9)), member(1, reward=0.0, calls=walk(1, 8, 9)))
    got = advantages(*rollouts, strategy="anchor", gamma=0.5, recipe=recipe)
    assert [got[rollout(0), name] for name in ("c0", "c1", "c2")] == [0.625, 0.5, 1.0]
    assert [got[rollout(1), name] for name in ("c0", "c1", "c2")] == [-0.625, -0.5, -1.0]


def test_rae_keeps_a_mean_for_each_agent() -> None:
    """Returns of `agent` are 1.5 for the planner and 1 for the coder; the means before the batch are .5 and 2."""
    earned = (AppliedReward(rule="air:ok", value=0.5),)
    team = (call("p", [1], [2], agent="planner", rewards=earned), call("c", [3], [4], agent="coder"))
    rules = config(credit=CreditConfig(strategy="agent"))
    group = group_in(close(member(0, size=1, calls=team), settings_=rules).outputs[0].value)
    recipe = Recipe(baseline="running_mean", decay=0.95)
    running = {"planner": 0.5, "coder": 2.0}
    got, after = call_advantages([group], recipe, rollout_tokens([group]), running=running)
    assert got == {(rollout(0), "p"): 1.0, (rollout(0), "c"): -1.0}
    assert after == pytest.approx({"planner": 0.95 * 0.5 + 0.05 * 1.5, "coder": 0.95 * 2.0 + 0.05})
