"""One optimiser step: what moves, what is skipped, what is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.rows import TrainingRow
from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.learner import STOPPED
from tracegrad.trainer.model.policy import configure_torch, load_policy

pytestmark = pytest.mark.torch


def learner_of(
    model: Path,
    recipe: Recipe = RECIPES[DEFAULT].recipe,
    *,
    is_told_to_stop: Callable[[], bool] = lambda: False,
    **changes: Any,
) -> SingleLearner:
    """A fresh one."""
    config = TrainerConfig(**{"lr": 5e-4, **changes})
    policy = load_policy(config, str(model), configure_torch(config, seed=0))
    return SingleLearner(policy, config, recipe, is_told_to_stop=is_told_to_stop)


def row(advantage: float = 1.0, *, version: int = 0, mu: float = -5.5, seed: int = 0) -> TrainingRow:
    """Twelve tokens, the last five trained."""
    rng = np.random.default_rng(seed)
    mask = np.arange(12) >= 7
    return TrainingRow(
        rollout_id="r0",
        token_ids_T=rng.integers(0, 261, 12, dtype=np.int32),
        loss_mask_T=mask,
        sampler_logprobs_T=np.where(mask, mu, 0.0).astype(np.float32),
        advantages_T=np.where(mask, advantage, 0.0).astype(np.float32),
        temperatures_T=np.ones(12, dtype=np.float32),
        versions_T=np.where(mask, version, -1),
        token_weight=0.1,
    )


def weights(learner: SingleLearner) -> dict[str, torch.Tensor]:
    """A copy."""
    return {name: master.detach().clone() for name, master in learner.policy.masters.items()}


def is_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_equal_steps_give_equal_weights_bit_for_bit(untied: Path) -> None:
    """Two learners, three steps."""
    results = []
    for _ in range(2):
        learner = learner_of(untied)
        losses = [learner.step([row(seed=s), row(-1.0, seed=9)], version=s, step=s + 1).loss for s in range(3)]
        results.append((losses, weights(learner), learner.tensors()))
    assert results[0][0] == results[1][0]
    assert is_equal(results[0][1], results[1][1])
    assert is_equal(results[0][2], results[1][2])


def test_restored_learner_goes_on_bit_for_bit(untied: Path) -> None:
    """Weights, moments and their step count, generators: the next step is the one that would have been."""
    first = learner_of(untied)
    first.step([row(seed=1)], version=0, step=1)
    second = learner_of(untied)
    saved = {name: tensor.detach().clone() for name, tensor in first.tensors().items()}
    draws = torch.rand(4)
    second.restore(saved)
    assert torch.equal(torch.rand(4), draws)
    assert first.step([row(seed=2)], version=1, step=2).loss == second.step([row(seed=2)], version=1, step=2).loss
    assert is_equal(weights(first), weights(second))
    assert is_equal(first.tensors(), second.tensors())


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 4}], ids=["full", "lora"])
def test_a_moving_reference_goes_its_share_towards_the_policy(changes: dict[str, Any], untied: Path) -> None:
    """Every second step; it begins as the policy, is kept in the checkpoint, and is what the KL is taken to."""
    recipe = Recipe(beta=0.1, kl_to="moving", reference_every=2, reference_share=0.25)
    config = TrainerConfig(lr=5e-4, **changes)

    def learner(recipe: Recipe = recipe) -> SingleLearner:
        device = configure_torch(config, seed=0)
        reference = load_policy(config, str(untied), device)
        return SingleLearner(load_policy(config, str(untied), device), config, recipe, reference=reference)

    def reference_of(one: SingleLearner) -> dict[str, torch.Tensor]:
        found = {name: tensor.detach().clone() for name, tensor in one.tensors().items()}
        return {name.partition("/")[2]: tensor for name, tensor in found.items() if name.startswith("reference/")}

    first, second = learner(), learner()
    start = weights(first)
    assert is_equal(reference_of(first), start)
    told = [first.step([row(seed=1)], version=0, step=1)]
    assert is_equal(reference_of(first), start)
    told.append(first.step([row(seed=2)], version=1, step=2))
    assert told[0].loss == learner(Recipe(beta=0.1)).step([row(seed=1)], version=0, step=1).loss
    assert told[0].kl_reference == 0.0 < (told[1].kl_reference or 0.0)
    expected = {name: torch.lerp(start[name], one, 0.25) for name, one in weights(first).items()}
    assert is_equal(reference_of(first), expected) and not is_equal(expected, start)
    second.restore({name: tensor.detach().clone() for name, tensor in first.tensors().items()})
    last = [one.step([row(seed=3)], version=2, step=3) for one in (first, second)]
    assert (last[0].loss, last[0].kl_reference) == (last[1].loss, last[1].kl_reference)
    assert is_equal(first.tensors(), second.tensors())


@pytest.mark.parametrize(
    ("rows", "reason"),
    [([], "no_tokens"), ([row(0.0)], "no_advantage"), ([row(1.0, mu=float("nan"))], "non_finite")],
    ids=["no tokens", "no advantage", "non-finite"],
)
def test_skipped_step_moves_nothing(rows: list[TrainingRow], reason: str, untied: Path) -> None:
    """Neither weights nor optimiser; the reason is told, the figures are finite."""
    learner = learner_of(untied)
    learner.step([row(seed=1)], version=0, step=1)
    before, state = weights(learner), {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    result = learner.step(rows, version=1, step=2)
    assert (result.is_updated, result.skipped) == (False, reason)
    assert is_equal(weights(learner), before)
    assert is_equal(learner.tensors(), state)
    assert np.isfinite([result.loss, result.grad_norm, result.logprob_error_max, result.ratio_mean]).all()


def test_step_that_is_broken_off_leaves_all_as_before(untied: Path) -> None:
    """Weights, optimiser, generators and gradients: the step is then taken as if for the first time."""
    answers: list[bool] = []
    learner = learner_of(untied, is_told_to_stop=lambda: bool(answers) and answers.pop(0), micro_batch_tokens=12)
    clean = learner_of(untied, micro_batch_tokens=12)
    learner.step([row(seed=1)], version=0, step=1)
    clean.step([row(seed=1)], version=0, step=1)
    before = {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    answers += [False, True, True]
    result = learner.step([row(seed=2), row(seed=3)], version=1, step=2)
    assert (result.is_updated, result.skipped, answers) == (False, STOPPED, [])
    assert is_equal(learner.tensors(), before)
    learner.step([row(seed=2), row(seed=3)], version=1, step=2)
    clean.step([row(seed=2), row(seed=3)], version=1, step=2)
    assert is_equal(learner.tensors(), clean.tensors())


def test_updates_of_a_step_are_the_steps_taken_one_by_one(untied: Path) -> None:
    """Weights, moments and warm-up; the figures are of both, the sampler is checked before the first alone."""
    once, twice = learner_of(untied), learner_of(untied)
    parts = [row(seed=1), row(-1.0, seed=2)], [row(seed=3)]
    told = once.step(*parts, version=0, step=1)
    singles = [twice.step(part, version=version, step=1) for version, part in enumerate(parts)]
    assert is_equal(once.tensors(), twice.tensors())
    assert told.loss == pytest.approx(sum(one.loss for one in singles) / 2)
    assert told.grad_norm == max(one.grad_norm for one in singles)
    assert told.learning_rate == singles[1].learning_rate
    assert told.ratio_mean == pytest.approx((10 * singles[0].ratio_mean + 5 * singles[1].ratio_mean) / 15)
    assert (told.num_checked_tokens, told.logprob_error_max) == (10, singles[0].logprob_error_max)


def test_an_update_without_advantage_is_left_out(untied: Path) -> None:
    """As a step without any is."""
    learner, clean = learner_of(untied), learner_of(untied)
    assert learner.step([row(0.0)], [row(seed=1)], [], version=0, step=1).is_updated
    clean.step([row(seed=1)], version=0, step=1)
    assert is_equal(learner.tensors(), clean.tensors())


@pytest.mark.parametrize("how", [STOPPED, "non_finite"])
def test_what_ends_in_a_later_update_undoes_the_step(how: str, untied: Path) -> None:
    """Weights, optimiser and generators are as before the first update: no version is of half a batch."""
    answers: list[bool] = []
    learner = learner_of(untied, is_told_to_stop=lambda: bool(answers) and answers.pop(0))
    learner.step([row(seed=1)], version=0, step=1)
    before = {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    # A look before the only micro-batch of an update and one after it.
    answers += [False, False, True, True] if how == STOPPED else []
    result = learner.step([row(seed=2)], [row(mu=float("nan") if how == "non_finite" else -5.5)], version=1, step=2)
    assert (result.is_updated, result.skipped, answers) == (False, how, [])
    assert is_equal(learner.tensors(), before)
    assert np.isfinite([result.loss, result.grad_norm, result.ratio_mean]).all()
    clean = learner_of(untied)
    clean.restore(before)
    assert learner.step([row(seed=3)], version=1, step=2).loss == clean.step([row(seed=3)], version=1, step=2).loss
    assert is_equal(learner.tensors(), clean.tensors())


def test_the_schedule_is_over_all_updates_of_the_run(untied: Path) -> None:
    """Two steps of two updates each, in a line, without warm-up: the second update of each is told."""
    learner = learner_of(untied, lr=4e-4, steps=2, warmup_steps=0, lr_schedule="linear")
    told = [learner.step([row(seed=1)], [row(seed=2)], version=0, step=step).learning_rate for step in (1, 2)]
    assert told == pytest.approx([3e-4, 1e-4])


def test_non_finite_logprobs_leave_no_gradient_behind(untied: Path) -> None:
    """The step after a skipped one is clean."""
    learner, clean = learner_of(untied), learner_of(untied)
    learner.step([row(1.0, mu=float("nan"))], version=0, step=1)
    learner.step([row(seed=3)], version=0, step=2)
    clean.step([row(seed=3)], version=0, step=2)
    assert is_equal(weights(learner), weights(clean))


def test_rows_without_advantage_change_nothing_but_their_weight(untied: Path) -> None:
    """They are looked at, not trained."""
    with_them, without = learner_of(untied), learner_of(untied)
    with_them.step([row(seed=1), row(0.0, seed=2)], version=0, step=1)
    without.step([row(seed=1)], version=0, step=1)
    assert is_equal(weights(with_them), weights(without))


def test_learning_rate_warms_up(untied: Path) -> None:
    """A third, two thirds, all of it."""
    learner = learner_of(untied, lr=3e-4)
    rates = [learner.step([row()], version=0, step=step).learning_rate for step in (1, 2, 3, 9)]
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 3e-4])


def test_warm_up_counts_updates_of_this_optimiser(untied: Path, tmp_path: Path) -> None:
    """Not batches that were skipped; a new optimiser (after a rollback) warms up again, a restored one does not."""
    learner, other = learner_of(untied, lr=3e-4), learner_of(untied, lr=3e-4)
    for step in (1, 2):
        learner.step([row(0.0)], version=0, step=step)
    assert learner.step([row()], version=0, step=3).learning_rate == pytest.approx(1e-4)
    other.restore({name: tensor.detach().clone() for name, tensor in learner.tensors().items()})
    assert other.step([row()], version=1, step=4).learning_rate == pytest.approx(2e-4)
    save_file(learner.export(), tmp_path / "model.safetensors")
    learner.recall(tmp_path / "model.safetensors", tmp_path)
    assert learner.step([row()], version=1, step=4).learning_rate == pytest.approx(1e-4)


def test_learning_rate_zero_takes_a_step_and_moves_nothing(untied: Path) -> None:
    """The control run: versions grow, content does not."""
    learner = learner_of(untied, lr=0.0)
    before = weights(learner)
    assert learner.step([row()], version=0, step=1).is_updated
    assert is_equal(weights(learner), before)


def test_logprob_error_is_taken_at_the_present_version_only(untied: Path) -> None:
    """Older tokens differ by learning, not by error."""
    learner = learner_of(untied)
    exact = learner.step([row(version=3, mu=-5.5)], version=4, step=1)
    assert (exact.num_checked_tokens, exact.logprob_error_max) == (0, 0.0)
    off = learner_of(untied).step([row(version=4, mu=-9.5)], version=4, step=1)
    assert off.num_checked_tokens == 5
    assert off.logprob_error_max > 2.0


def test_figures_to_watch_are_over_all_tokens_of_the_batch(untied: Path) -> None:
    """Also over rows without advantage: half of the tokens here, and the ones where the engine serves other weights."""
    trained, idle = row(1.0, mu=-9.5, version=1, seed=1), row(0.0, mu=-1.5, seed=2)
    alone = learner_of(untied).step([trained], version=0, step=1)
    both = learner_of(untied).step([trained, idle], version=0, step=1)
    assert (alone.clip_fraction, both.clip_fraction) == (1.0, 0.5)
    assert (alone.num_checked_tokens, both.num_checked_tokens) == (0, 5)
    assert both.logprob_error_max > 2.0
    # exp(-5.5 + 9.5) and exp(-5.5 + 1.5), about.
    assert both.ratio_mean == pytest.approx(alone.ratio_mean / 2, rel=0.05)
    assert both.grad_norm == alone.grad_norm


def test_weights_that_give_no_numbers_are_noticed_at_any_row(untied: Path) -> None:
    """Also at one without advantage, whose loss is 0 whatever they give."""
    result = learner_of(untied).step([row(1.0), row(0.0, mu=float("nan"), seed=2)], version=0, step=1)
    assert (result.is_updated, result.skipped) == (False, "non_finite")


def test_gradient_norm_is_reported_before_clipping(untied: Path) -> None:
    """Clipping at a thousandth changes what AdamW sees, not what is told."""
    free = learner_of(untied).step([row()], version=0, step=1)
    held = learner_of(untied, clip_norm=1e-3).step([row()], version=0, step=1)
    assert held.grad_norm == free.grad_norm > 1e-3


@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"lora_rank": 4}], ids=["full", "bfloat16", "lora"])
def test_head_in_chunks_gives_the_step_of_the_whole(changes: dict[str, Any], untied: Path) -> None:
    """Five rows of five trained tokens, two positions of logits at a time: loss and gradient are the same."""
    rows = [row((-1.0) ** seed, seed=seed) for seed in range(5)]
    whole = learner_of(untied, **changes).step(rows, version=0, step=1)
    parts = learner_of(untied, micro_batch_logits=5 * 2 * 261, **changes).step(rows, version=0, step=1)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)
    assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-2 if "dtype" in changes else 1e-5)


def test_no_more_logits_are_made_at_once_than_told(untied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one row, however long: forward, again in the backward pass from the end, one look at the new weights."""
    learner, made = learner_of(untied, micro_batch_logits=2 * 261), []
    original = learner.policy.head

    def watched(hidden_BKD: torch.Tensor) -> torch.Tensor:
        logits_BKV = original(hidden_BKD)
        made.append(logits_BKV.numel())
        return logits_BKV

    monkeypatch.setattr(learner.policy, "head", watched)
    learner.step([row()], version=0, step=1)
    pieces = [2 * 261, 2 * 261, 261]
    assert made == [*pieces, *reversed(pieces), *pieces]


def test_one_token_ten_nats_off_does_not_become_the_step(untied: Path) -> None:
    """The sampler says e^-15.5 of a token that the trainer finds e^-5.5: with a negative advantage it is bounded."""
    rows = [row(-1.0, seed=seed) for seed in range(4)]
    clean = learner_of(untied).step(rows, version=1, step=1)
    rows[0].sampler_logprobs_T[9] -= 10.0
    off = learner_of(untied).step(rows, version=1, step=1)
    assert off.grad_norm < 1.5 * clean.grad_norm
    assert (clean.num_bounded_tokens, off.num_bounded_tokens) == (0, 1)
