"""What must hold of every recipe, by a policy whose logprobs are known: to 1e-6 of loss and gradient."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from tests.trainer.material import (
    VOCABULARY,
    group_bytes,
    group_in,
    groups_of,
    segment,
    summary,
    turn,
)
from tests.trainer.toy_policy import ToyPolicy, learn
from tracegrad.schemas.records.training import StepResult
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.groups import Group
from tracegrad.trainer.batch.rows import training_rows, updates
from tracegrad.trainer.config import TrainerConfig

pytestmark = pytest.mark.torch

MORE = {
    "by rollout": Recipe(level="rollout", aggregation="rollout_mean"),
    "by turn": Recipe(level="turn"),
    "k3+ to the sampler": Recipe(beta=0.1, kl="k3+", kl_to="sampler", entropy=0.01),
    "critic": Recipe(baseline="critic", gamma=0.9, lam=0.5, beta=0.1, kl="k1", kl_in="return"),
    "all": Recipe(baseline="leave_one_out", scale="batch_std", over="batch", level="rollout", beta=0.1, entropy=0.1),
}
ALL = {name: known.recipe for name, known in RECIPES.items()} | MORE
each_recipe = pytest.mark.parametrize("recipe", ALL.values(), ids=ALL)


def assert_alike(one: tuple[StepResult, ToyPolicy], other: tuple[StepResult, ToyPolicy]) -> None:
    """Loss and gradient, which is not nothing."""
    assert one[0].is_updated and other[0].is_updated
    assert one[0].loss == pytest.approx(other[0].loss, abs=1e-6)
    torch.testing.assert_close(one[1].gradient, other[1].gradient, atol=1e-6, rtol=1e-5)
    assert float(one[1].gradient.abs().max()) > 1e-5


@each_recipe
@pytest.mark.parametrize("max_tokens", [1, 64])
def test_micro_batches_change_nothing(recipe: Recipe, max_tokens: int) -> None:
    """Row by row, a few, or all at once: padding, and units that lie in several."""
    groups = groups_of(3)
    assert_alike(learn(groups, recipe, max_tokens=max_tokens), learn(groups, recipe))


@each_recipe
def test_order_of_groups_and_rows_changes_nothing(recipe: Recipe) -> None:
    """But that of a rollout's own rows."""
    groups = groups_of(3)
    shuffled = [replace(group, rows=tuple(reversed(group.rows))) for group in reversed(groups)]
    assert_alike(learn(shuffled, recipe), learn(groups, recipe))


@each_recipe
def test_tokens_that_do_not_train_change_nothing(recipe: Recipe) -> None:
    """Other prompts, and other logprobs there."""
    rng = np.random.default_rng(0)

    def changed(group: Group) -> Group:
        rows = []
        for row in group.rows:
            is_trained = row.loss_mask.astype(bool)
            ids = np.where(is_trained, row.token_ids, rng.integers(0, VOCABULARY, len(row.token_ids)))
            logprobs = np.where(is_trained, row.logprobs, np.float32(-3.0))
            rows.append(msgspec.structs.replace(row, token_ids=ids.astype(np.int32), logprobs=logprobs))
        return replace(group, rows=tuple(rows))

    groups = groups_of(3)
    assert_alike(learn([changed(group) for group in groups], recipe), learn(groups, recipe))


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(r, id=n) for n, r in ALL.items() if r.baseline not in ("none", "critic") and r.outcome == "return"],
)
def test_a_constant_added_to_all_returns_changes_nothing(recipe: Recipe) -> None:
    """What is compared is their difference."""

    def shifted(group: Group) -> Group:
        def raised(turn_: Any) -> Any:
            return msgspec.structs.replace(turn_, return_=turn_.return_ + 2.0)

        rows = [msgspec.structs.replace(row, turns=tuple(map(raised, row.turns))) for row in group.rows]
        return replace(group, rows=tuple(rows))

    groups = groups_of(3)
    assert_alike(learn([shifted(group) for group in groups], recipe), learn(groups, recipe))


def two_turns(is_split: bool) -> list[Group]:
    """Four rollouts of two turns each: in one row, or the second turn in a row of its own, after the same tokens."""
    rows, rng = [], random.Random(7)
    for rollout in ("r0", "r1", "r2", "r3"):
        final = rng.choice([0.0, 1.0])
        turns = [turn(2, 5, call="a", returned=final + 0.5, peers="0"), turn(7, 9, call="b", returned=final, peers="1")]
        row = segment(rollout, turns, num_tokens=9)
        first, second = ((start <= np.arange(9)) & (np.arange(9) < end) for start, end in ((2, 5), (7, 9)))
        masks = (first, second) if is_split else (first | second,)
        rows += [
            msgspec.structs.replace(row, segment=number, loss_mask=mask.astype(np.uint8))
            for number, mask in enumerate(masks)
        ]
    return [Group(summary("g0", ["r0", "r1", "r2", "r3"]), tuple(rows))]


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(r, id=n)
        for n, r in ALL.items()
        if r.level != "row" and r.correction not in ("tis_row", "reject_row", "opsm")
    ],
)
@pytest.mark.parametrize("max_tokens", [1, 4096])
def test_a_row_split_in_two_segments_is_the_same(recipe: Recipe, max_tokens: int) -> None:
    """Of each recipe that does not ask for rows."""
    assert_alike(learn(two_turns(True), recipe, max_tokens=max_tokens), learn(two_turns(False), recipe))
    for form in ("transitions", "concatenated"):
        formed = msgspec.structs.replace(recipe, rows=form)
        assert_alike(learn(two_turns(True), formed, max_tokens=max_tokens), learn(two_turns(False), recipe))


@pytest.mark.parametrize("level", ["token", "turn", "row", "rollout"])
@pytest.mark.parametrize(
    "axes",
    [
        {"anchor": "sampler"},
        {"anchor": "old"},
        {"anchor": "old", "correction": "tis_row", "correction_high": 1.2},
        {"anchor": "sampler", "correction": "opsm", "correction_high": 0.0},
    ],
    ids=lambda axes: ",".join(map(str, axes.values())),
)
def test_micro_batches_change_nothing_in_any_update_of_a_step(axes: dict[str, Any], level: Any) -> None:
    """Two passes of two mini-batches: units that lie in several micro-batches, of a policy that moves."""
    recipe = Recipe(**axes, level=level, low=0.5, high=1.0, passes=2, minibatches=2)
    found = []
    for max_tokens in (1, 4096):
        policy = ToyPolicy(0)
        config = TrainerConfig(lr=1e-3, warmup_steps=0, micro_batch_tokens=max_tokens)
        learner = SingleLearner(cast(Any, policy), config, recipe)
        groups = [*groups_of(2), *two_turns(True)]
        rows, _ = learner.rows(groups, {})
        found.append((learner.step(*updates(rows, groups, recipe, seed="0/1"), version=0, step=1), policy))
    assert_alike(*found)
    torch.testing.assert_close(found[0][1].theta, found[1][1].theta, atol=1e-6, rtol=0)


@pytest.mark.parametrize("recipe", [pytest.param(r, id=n) for n, r in ALL.items() if r.outcome == "return"])
def test_equal_returns_train_nothing(recipe: Recipe) -> None:
    """Exactly: no token of any rollout has an advantage, whoever is alone or of whatever length."""
    names = [f"r{number}" for number in range(7)]
    rows = [
        segment(name, [turn(1, 2 + number % 3, returned=0.1, peers=str(number // 6))])
        for number, name in enumerate(names)
    ]
    made, _ = training_rows([Group(summary("g0", names), tuple(rows))], recipe)
    assert not any(row.has_advantage for row in made)


@each_recipe
@pytest.mark.parametrize("logprob", [-80.0, -3e4, -1e30])
def test_a_token_that_the_sampler_found_impossible_leaves_numbers(recipe: Recipe, logprob: float) -> None:
    """e^80 times as likely, and more: loss and gradient stay finite, whatever is held back."""
    groups = []
    for group in groups_of(3):
        logprobs = group.rows[0].logprobs.copy()
        logprobs[np.flatnonzero(group.rows[0].loss_mask)[0]] = logprob
        first = msgspec.structs.replace(group.rows[0], logprobs=logprobs)
        groups.append(replace(group, rows=(first, *group.rows[1:])))
    result, policy = learn(groups, recipe)
    assert result.is_updated
    assert math.isfinite(result.loss) and bool(policy.gradient.isfinite().all())


def test_the_default_costs_no_pass_of_its_own() -> None:
    """One a micro-batch, and one look at the new weights."""
    assert RECIPES[DEFAULT].recipe.needs == frozenset()
    assert learn(groups_of(3), RECIPES[DEFAULT].recipe)[1].num_passes == 2


def test_rows_without_advantage_train_where_the_recipe_asks() -> None:
    """A group of equal returns: nothing but the KL to the reference, or the entropy, moves the weights."""
    group = group_in(group_bytes(9, spread=0.0))
    assert learn([group], Recipe())[0].skipped == "no_advantage"
    for recipe in (Recipe(beta=0.1), Recipe(entropy=0.1)):
        result, policy = learn([group], recipe)
        assert result.is_updated
        assert float(policy.gradient.abs().max()) > 1e-4


@pytest.mark.parametrize(
    "axes",
    [
        {"anchor": "old"},
        {"anchor": "old", "level": "rollout"},
        {"anchor": "old", "correction": "tis"},
        {"beta": 0.1, "kl": "k1", "kl_in": "tokens", "anchor": "old", "correction": "icepop"},
    ],
    ids=lambda axes: ",".join(map(str, axes.values())),
)
def test_later_updates_are_held_against_the_policy_before_the_first(axes: dict[str, Any]) -> None:
    """By a toy whose theta is moved by hand: what the second update sees of a ratio is how far it moved."""
    recipe = Recipe(**axes, passes=2)
    policy = ToyPolicy(0)
    config = TrainerConfig(lr=0.0, micro_batch_tokens=1)
    learner = SingleLearner(cast(Any, policy), config, recipe, reference=cast(Any, ToyPolicy(1)))
    rows, _ = learner.rows(groups_of(3), {})
    kept = policy.theta.detach().clone()
    for row in rows:
        old_T = kept[torch.from_numpy(row.token_ids_T.astype(np.int64))].numpy()
        assert row.old_logprobs_T is not None
        assert np.array_equal(row.old_logprobs_T, np.where(row.loss_mask_T, old_T, np.float32(0.0)))
    with torch.no_grad():
        policy.theta += 0.5
    moved = learner.step(rows, version=0, step=1)
    assert moved.clip_fraction > 0.0, "exp(.5) is beyond 1.2 wherever A is positive"
    none_moved = msgspec.structs.replace(recipe, passes=1)
    once = SingleLearner(cast(Any, policy), config, none_moved, reference=cast(Any, ToyPolicy(1)))
    rows, _ = once.rows(groups_of(3), {})
    assert all(row.old_logprobs_T is None for row in rows)
