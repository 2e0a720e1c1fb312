"""What is watched of a batch, with numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from msgspec.structs import replace

from tests.trainer.material import segment, summary, turn
from tests.trainer.toy_policy import learn
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.training import StepResult, TrainingStep
from tracegrad.schemas.records.transitions import SegmentRow
from tracegrad.trainer.algorithm.form import loss
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.batches import Batch
from tracegrad.trainer.batch.groups import Group
from tracegrad.trainer.batch.packing import micro_batches
from tracegrad.trainer.batch.rows import TrainingRow, training_rows
from tracegrad.trainer.describe import describe_step, step_line
from tracegrad.trainer.step_figures import StepFigures
from tracegrad.trainer.store.checkpoint import CheckpointState

pytestmark = pytest.mark.torch

TAKEN = StepResult(is_updated=True, loss=0.5, grad_norm=1.5, learning_rate=1e-3)


def row(advantages: list[float], *, mu: float = -1.0) -> TrainingRow:
    """A token that no one trains, and one for each advantage."""
    mask = np.arange(len(advantages) + 1) > 0
    return TrainingRow(
        rollout_id="r0",
        token_ids_T=np.zeros(len(mask), np.int32),
        loss_mask_T=mask,
        sampler_logprobs_T=np.where(mask, mu, 0.0).astype(np.float32),
        advantages_T=np.array([0.0, *advantages], np.float32),
        temperatures_T=np.ones(len(mask), np.float32),
        versions_T=np.where(mask, 0, -1),
        token_weight=1.0,
    )


def watched(ratios: list[float], recipe: Recipe, *, behind: float | None = None) -> StepResult:
    """Two tokens with A = 1 and two with -1, at these ratios; in two micro-batches."""
    watch = StepFigures()
    halves = zip([[1.0, 1.0], [-1.0, -1.0]], [ratios[:2], ratios[2:]], strict=True)
    for advantages, of_half in halves:
        (batch,) = micro_batches([row(advantages)], max_tokens=8)
        logprobs = batch.sampler_logprobs_N + torch.tensor(of_half).log()
        term = loss(
            recipe,
            logprobs_N=logprobs,
            sampler_logprobs_N=batch.sampler_logprobs_N,
            advantages_N=batch.advantages_N,
            weights_N=batch.weights_N,
            rows_N=batch.rows_N,
        )
        watch.add_batch(batch, logprobs, term, version=0, reference_N=None if behind is None else logprobs - behind)
    return replace(TAKEN, **watch.figures())


def test_figures_of_four_tokens() -> None:
    """w = 1, 2, .5, 1: ESS 4.5^2 / (4 * 6.25); KL the mean of 0, 1 - log 2, log 2 - .5, 0."""
    got = watched([1.0, 2.0, 0.5, 1.0], Recipe(), behind=math.log(2.0))
    assert (got.ratio_mean, got.ess) == pytest.approx((4.5 / 4, 20.25 / 25))
    assert got.kl_sampler == pytest.approx(0.5 / 4)
    assert got.kl_reference == pytest.approx(0.5 - 1.0 + math.log(2.0))
    assert (got.clip_fraction, got.clip_fraction_positive) == (0.5, 0.25)
    assert (got.num_rejected_tokens, got.num_checked_tokens) == (0, 4)
    assert got.logprob_error_max == pytest.approx(math.log(2.0))


def test_what_a_correction_rejects_is_counted() -> None:
    """IcePop's bounds of .6 and 1.5 leave two of the four."""
    recipe = Recipe(anchor="old", correction="icepop", correction_low=0.6, correction_high=1.5)
    assert watched([1.0, 2.0, 0.5, 1.0], recipe).num_rejected_tokens == 2


def test_the_ratio_watched_is_to_the_sampler_whatever_the_recipe() -> None:
    """By `anchor = "old"` the loss's own is 1."""
    assert watched([2.0] * 4, Recipe(anchor="old")).ratio_mean == pytest.approx(2.0)


def test_no_figure_is_nan() -> None:
    """A record with one could not be read again."""
    got = watched([math.nan, 1.0, 1.0, 1.0], Recipe())
    assert all(math.isfinite(value) for value in (got.ess, got.kl_sampler, got.ratio_mean, got.clip_fraction))


def test_micro_batches_change_no_figure() -> None:
    """They are sums over tokens."""
    groups = [group([1.0, 0.0, 1.0])]
    one, other = (learn(groups, Recipe(beta=0.1), max_tokens=size)[0] for size in (8, 4096))
    assert (one.ess, one.kl_sampler, one.kl_reference) == pytest.approx(
        (other.ess, other.kl_sampler, other.kl_reference)
    )


def test_the_kl_to_the_reference_is_told_wherever_it_goes() -> None:
    """Into the loss, or out of the reward by k1."""
    groups = [group([1.0, 0.0, 1.0])]
    one, other = (learn(groups, of)[0] for of in (Recipe(beta=0.1), Recipe(beta=0.1, kl="k1", kl_in="tokens")))
    assert one.kl_reference and other.kl_reference == pytest.approx(one.kl_reference)
    assert learn(groups, Recipe())[0].kl_reference is None


def group(rewards: list[float | None], number: int = 0) -> Group:
    """A rollout of each reward: two turns, of two and three tokens."""
    name = f"{number:024x}"
    rollouts = [f"{name}{member:04x}" for member in range(len(rewards))]
    rows = [turns_of(rollout, reward) for rollout, reward in zip(rollouts, rewards, strict=True)]
    known = summary(name, rollouts)
    members = [replace(member, reward=reward) for member, reward in zip(known.members, rewards, strict=True)]
    return Group(replace(known, members=tuple(members)), tuple(rows))


def turns_of(rollout: str, reward: float | None) -> SegmentRow:
    """log mu is -1 in the first turn and -2 in the second."""
    made = segment(
        rollout, [turn(1, 3, call="a", returned=reward or 0.0), turn(4, 7, call="b", returned=reward or 0.0)]
    )
    turns = tuple(replace(one, turn=number * 20) for number, one in enumerate(made.turns))
    logprobs = np.array([0, -1, -1, 0, -2, -2, -2, 0], np.float32)
    return replace(made, turns=turns, logprobs=logprobs)


def described(*groups: Group) -> TrainingStep:
    """Of a batch of them."""
    batch = Batch(
        0, len(groups), tuple(groups), (), {}, 0, (), "hash", tuple(one.summary.group_id for one in groups), 0
    )
    rows, _ = training_rows(groups, Recipe())
    before = CheckpointState(policy="policy", run=RunHash("7c1f3e9a"))
    return describe_step(
        before,
        version=1,
        num_unpublished=0,
        batch=batch,
        rows=rows,
        result=TAKEN,
        seconds={},
        machine={},
        started_at_ms=0,
        ended_at_ms=1,
    )


def test_spread_is_of_groups_with_two_scored_rollouts() -> None:
    """Of 1 and 0 it is sqrt(1/2), of equal ones exactly 0; one score alone says nothing."""
    step = described(group([1.0, 0.0, None], 0), group([0.1, 0.1, 0.1], 1), group([1.0, None, None], 2))
    assert step.reward_std == pytest.approx(math.sqrt(0.5) / 2)
    assert step.equal_groups == 0.5
    nothing = described(group([None, 1.0]))
    assert (nothing.reward_std, nothing.equal_groups) == (None, None)


def test_entropy_is_the_samplers_by_turn() -> None:
    """Two tokens at 1 nat, three at 2; the turn of number 20 is told as the sixteenth."""
    step = described(group([1.0, 0.0]))
    assert step.entropy == pytest.approx(8 / 5)
    assert step.entropy_by_turn == pytest.approx({"0": 1.0, "15": 2.0})
    assert (step.length_mean, step.length_max) == (5.0, 5)
    assert "entropy=1.6 " in step_line(step)


def test_calls_and_members_that_are_left_out_are_counted_by_why() -> None:
    """A call that a row of another repeats counts once."""
    masked = group([1.0, 0.0])
    rows = tuple(
        replace(row, turns=(replace(row.turns[0], masked="constrained"), row.turns[1]), loss_mask=row.loss_mask * 0)
        for row in masked.rows
    )
    members = (*masked.summary.members, replace(masked.summary.members[0], rollout_id="gone", excluded="unscored"))
    step = described(Group(replace(masked.summary, members=members), (*rows, *rows)), group([1.0, 0.0], 1))
    assert (step.masked, step.members_excluded) == ({"constrained": 2}, {"unscored": 1})
