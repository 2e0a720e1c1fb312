"""How a batch is dealt to passes and mini-batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.trainer.material import groups_of
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.groups import GroupLimits
from tracegrad.trainer.batch.rows import TrainingRow, training_rows, updates

LIMITS = GroupLimits(policy="policy", vocabulary=261, max_row_tokens=100)


def weight(rows: list[TrainingRow]) -> float:
    """The sum of what their trained tokens weigh."""
    return sum(row.token_weight * int(row.loss_mask_T.sum()) for row in rows)


def test_by_default_there_is_one_update_of_all_rows() -> None:
    """The rows themselves, in their order."""
    groups, recipe = groups_of(2), Recipe()
    rows, _ = training_rows(groups, recipe)
    (only,) = updates(rows, groups, recipe, seed="0/1")
    assert [id(row) for row in only] == [id(row) for row in rows]


def test_passes_alone_repeat_the_batch() -> None:
    """Same rows, same denominators."""
    groups, recipe = groups_of(2), Recipe(passes=3)
    rows, _ = training_rows(groups, recipe)
    assert updates(rows, groups, recipe, seed="0/1") == [rows] * 3


@pytest.mark.parametrize("aggregation", ["token_mean", "rollout_mean", "group_mean"])
def test_each_mini_batch_has_its_own_denominator(aggregation: Any) -> None:
    """Its tokens weigh 1 together, as those of a whole batch do."""
    groups, recipe = groups_of(2), Recipe(passes=2, minibatches=3, aggregation=aggregation)
    rows, _ = training_rows(groups, recipe)
    parts = updates(rows, groups, recipe, seed="0/1")
    assert [weight(part) for part in parts] == pytest.approx([1.0] * 6)
    assert weight(rows) == pytest.approx(1.0)


def test_each_rollout_is_in_one_mini_batch_of_a_pass_with_all_its_rows() -> None:
    """Sizes differ by one at most; the second pass is dealt anew."""
    groups, recipe = groups_of(2), Recipe(passes=2, minibatches=3)
    rows, _ = training_rows(groups, recipe)
    parts = [[row.rollout_id for row in part] for part in updates(rows, groups, recipe, seed="0/1")]
    for one in (parts[:3], parts[3:]):
        assert Counter(rollout for part in one for rollout in part) == Counter(row.rollout_id for row in rows)
        assert sorted(len(set(part)) for part in one) == [2, 3, 3]
    assert parts[:3] != parts[3:]


def test_the_deal_depends_on_the_seed_alone() -> None:
    """A batch that is taken again is dealt alike; another step is not."""
    groups, recipe = groups_of(3), Recipe(minibatches=4)
    rows, _ = training_rows(groups, recipe)
    told = [
        [[row.rollout_id for row in part] for part in updates(rows, groups, recipe, seed=seed)]
        for seed in ("0/1", "0/1", "0/2", "1/1")
    ]
    assert told[0] == told[1]
    assert told[0] != told[2] != told[3] != told[0]


def test_more_mini_batches_than_rollouts_leave_some_empty() -> None:
    """They are no updates; nothing is lost."""
    groups, recipe = groups_of(1), Recipe(minibatches=6)
    rows, _ = training_rows(groups, recipe)
    assert sorted(len(part) for part in updates(rows, groups, recipe, seed="0/1")) == [0, 0, 1, 1, 1, 1]
