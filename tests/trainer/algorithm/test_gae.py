"""Generalised advantages and the critic's loss: by hand, by other libraries' functions, and literally."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

import torch

from tests.seeds import any_seed
from tests.trainer.algorithm import literal
from tests.trainer.algorithm.reading import FILES, Case, cases, close
from tracegrad.trainer.algorithm.gae import explained_variance, generalised, value_losses

pytestmark = pytest.mark.torch


def test_worked_by_hand() -> None:
    """r = 1, 0, 2; V = .5, 1, 1; gamma = lambda = 1/2."""
    # deltas: 1 + .5 - .5 = 1; 0 + .5 - 1 = -.5; 2 - 1 = 1
    assert generalised([1.0, 0.0, 2.0], [0.5, 1.0, 1.0], 0.5, 0.5) == [1 - 0.125 + 0.0625, -0.5 + 0.25, 1.0]
    assert generalised([], [], 1.0, 1.0) == []


def test_lambda_one_is_the_return_minus_the_value() -> None:
    """Whatever the values of later steps are."""
    rewards, values = [1.0, -2.0, 4.0], [0.25, 0.5, -1.0]
    assert generalised(rewards, values, 1.0, 1.0) == [3.0 - 0.25, 2.0 - 0.5, 4.0 + 1.0]


def test_lambda_zero_of_perfect_values_is_nothing() -> None:
    """V = the discounted return-to-go: no step errs, whatever lambda."""
    rewards = [1.0, 0.0, 2.0]
    values = [1.0 + 0.25 * 2.0, 0.5 * 2.0, 2.0]
    assert generalised(rewards, values, 0.5, 0.0) == [0.0, 0.0, 0.0]
    assert generalised(rewards, values, 0.5, 0.9) == [0.0, 0.0, 0.0]


@any_seed
def test_is_the_literal_sum(seed: int) -> None:
    """Any numbers."""
    rng = random.Random(seed)
    num = rng.randint(1, 30)
    rewards, values = ([rng.gauss(0, 2) for _ in range(num)] for _ in range(2))
    gamma, lam = rng.uniform(0.5, 1.0), rng.uniform(0.0, 1.0)
    expected = literal.gae(rewards, values, gamma, lam)
    assert generalised(rewards, values, gamma, lam) == pytest.approx(expected, abs=1e-9)


def test_is_openrlhfs() -> None:
    """Each position a step."""
    (case,) = FILES["openrlhf"]["gae"]
    inputs, axes = case["inputs"], case["axes"]
    for values, reward, expected in zip(inputs["values_RK"], inputs["rewards_R"], case["advantages_RK"], strict=True):
        found = generalised([0.0] * (len(values) - 1) + [reward], values, axes["gamma"], axes["lam"])
        assert found == close(case, expected)


def test_is_verls() -> None:
    """Over the trained tokens of a rollout, whose reward is at the last; the others are no steps."""
    (case,) = FILES["verl"]["gae"]
    batch, axes = FILES["verl"]["batches"][case["batch"]], case["axes"]
    by_rollout: dict[int, list[float]] = {}
    for rollout, value in zip(batch["rollout_N"], batch["values_N"], strict=True):
        by_rollout.setdefault(rollout, []).append(value)
    returns: list[float] = []
    for reward, values in zip(batch["rewards_R"], by_rollout.values(), strict=True):
        found = generalised([0.0] * (len(values) - 1) + [reward], values, axes["gamma"], axes["lam"])
        returns += [advantage + value for advantage, value in zip(found, values, strict=True)]
    assert returns == close(case, case["returns_N"])


@pytest.mark.parametrize(("case", "batch"), cases("value_losses"))
def test_value_loss_and_gradient_are_the_librarys(case: Case, batch: Case) -> None:
    """verl's: the mean over trained tokens."""
    values_N = torch.tensor(batch["logprobs_N"], dtype=torch.float64, requires_grad=True)
    targets_N, old_N = (torch.tensor(batch[name], dtype=torch.float64) for name in ("entropies_N", "values_N"))
    found = value_losses(values_N, targets_N, old_N, case["axes"]["clip_value"]).mean()
    found.backward()  # type: ignore[no-untyped-call]
    assert values_N.grad is not None
    assert float(found.detach()) == close(case, case["loss"])
    assert values_N.grad.tolist() == close(case, case["gradient_N"])


def test_a_value_that_moved_too_far_is_held() -> None:
    """From 0 to 1 with target 2 and clip .5: the greater loss is the clipped one's, (.5 - 2)^2 / 2: no gradient."""
    values_N = torch.tensor([1.0], requires_grad=True)
    losses_N = value_losses(values_N, torch.tensor([2.0]), torch.tensor([0.0]), 0.5)
    losses_N.sum().backward()  # type: ignore[no-untyped-call]
    assert losses_N.tolist() == [1.125] and values_N.grad is not None and values_N.grad.tolist() == [0.0]
    assert value_losses(values_N, torch.tensor([2.0]), torch.tensor([0.0]), None).tolist() == [0.5]


def test_explained_variance() -> None:
    """1 for perfect values, 0 for the mean, below for what is worse; none of targets that are alike."""
    targets_N = torch.tensor([0.0, 1.0, 2.0, 1.0])
    assert explained_variance(targets_N, targets_N) == 1.0
    assert explained_variance(torch.ones(4), targets_N) == 0.0
    assert explained_variance(-targets_N, targets_N) == pytest.approx(-3.0)
    assert explained_variance(targets_N, torch.ones(4)) is None
    assert explained_variance(torch.zeros(0), torch.zeros(0)) is None
