"""From episodes to advantages: what credit's peers give in the trainer, by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.streams.credit.test_credit import close, member
from tests.streams.credit.test_segments import call
from tests.trainer.material import VOCABULARY, record
from tracegrad.schemas.records.episodes import AppliedReward, Episode
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.groups import CallKey, GroupLimits, judge
from tracegrad.trainer.batch.rows import group_advantages

pytestmark = pytest.mark.torch


def advantages(*episodes: Episode) -> dict[CallKey, float]:
    """Of each call of a group, as the default recipe has them."""
    group = judge(record(close(*episodes).outputs[0].value), GroupLimits("policy", VOCABULARY)).group
    assert group is not None
    return group_advantages(group, Recipe())


def test_equal_rollouts_of_two_agents_train_nothing() -> None:
    """Both earn the planner .5 and end with 1: nothing tells the one from the other."""
    earned = (AppliedReward(rule="air:ok", value=0.5),)
    team = (call("plan", [1], [2], agent="planner", rewards=earned), call("code", [3], [4], agent="coder"))
    assert set(advantages(member(0, calls=team), member(1, calls=team)).values()) == {0.0}
