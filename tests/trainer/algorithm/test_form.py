"""The form: axes put together, by hand and by property."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.form import TokenLoss, loss, token_weights, turn_advantages
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES

pytestmark = pytest.mark.torch

RECIPE = RECIPES[DEFAULT]


def loss_of(
    ratios: list[float], advantages: list[float], weights: list[float] | None = None
) -> tuple[TokenLoss, torch.Tensor]:
    """The loss at given ratios; mu is 0.5 for every token."""
    sampler = torch.full((len(ratios),), math.log(0.5))
    logprobs = (torch.tensor(ratios).log() + sampler).requires_grad_(True)
    term = loss(
        RECIPE,
        logprobs_N=logprobs,
        sampler_logprobs_N=sampler,
        advantages_N=torch.tensor(advantages),
        weights_N=torch.tensor(weights or [1.0] * len(ratios)),
    )
    return term, logprobs


def gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    """After a backward pass."""
    assert tensor.grad is not None
    return tensor.grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.2, 1.0, -1.2, -1.2),
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (1.5, -2.0, 3.0, 3.0),
        (5.0, -2.0, 6.0, 0.0),
        (0.5, -2.0, 1.6, 0.0),
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_loss_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    """-min(rho A, clip(rho, .8, 1.28) A), at most -3 A; d/dlogprob is -rho A where the clip does not hold, else 0."""
    term, logprobs = loss_of([ratio], [advantage])
    assert term.loss.item() == pytest.approx(loss, rel=1e-5)
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert gradient_of(logprobs).item() == pytest.approx(gradient, rel=1e-5, abs=1e-7)
    assert bool(term.clipped_N.item()) == (gradient == 0.0)


def test_absurd_ratio_stays_finite() -> None:
    """A token that the trainer finds e^60 times likelier weighs 3, and is counted."""
    term, logprobs = loss_of([math.exp(60.0)], [-1.0])
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert term.loss.item() == pytest.approx(3.0)
    assert gradient_of(logprobs).item() == 0.0
    assert term.bounded_N.tolist() == [True]


def test_zero_advantage_gives_zero_gradient() -> None:
    """So such rows need not be computed."""
    term, logprobs = loss_of([1.3, 0.4], [0.0, 0.0])
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert term.loss.item() == 0.0
    assert torch.equal(gradient_of(logprobs), torch.zeros_like(logprobs))


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("token_mean", 1 / 3), ("rollout_mean", 0.0), ("constant", 1 / 10)]
)
def test_worked_example_of_the_docs(aggregation: Any, expected: float) -> None:
    """docs/training.md: returns 1 and 0, two and four tokens, rho = 1."""
    recipe = Recipe(aggregation=aggregation, length=10)
    advantages = turn_advantages(recipe, ["r0", "r1"], [1.0, 0.0])
    weights = token_weights(recipe, [2, 4])
    assert advantages == [1.0, -1.0]
    term, _ = loss_of([1.0] * 6, [1.0] * 2 + [-1.0] * 4, [weights[0]] * 2 + [weights[1]] * 4)
    assert term.loss.item() == pytest.approx(expected, abs=1e-6)


def test_equal_returns_give_exactly_zero() -> None:
    """0.1 summed seven times rounds; a group without spread must still cost nothing."""
    for size in range(2, 20):
        for scale in ("none", "std"):
            assert turn_advantages(Recipe(scale=scale), [str(i) for i in range(size)], [0.1] * size) == [0.0] * size


def test_scale_divides_by_the_std() -> None:
    """Returns 1 and 0: advantages 1 and -1, std 0.5, so 2 and -2."""
    assert turn_advantages(Recipe(scale="std"), ["r0", "r1"], [1.0, 0.0]) == pytest.approx([2.0, -2.0])


def test_turn_without_peers_gets_zero() -> None:
    """Whatever its return, scaled or not."""
    for scale in ("none", "std"):
        assert turn_advantages(Recipe(scale=scale), ["r0", "r0"], [5.0, 1.0]) == [0.0, 0.0]
