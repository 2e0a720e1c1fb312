"""The loss: small numbers worked by hand, and properties."""

from __future__ import annotations

import math
from typing import Literal

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.surrogate import Denominator, TokenLoss, clipped_policy_loss, sampled_logprobs
from tracegrad.trainer.config import LossConfig

pytestmark = pytest.mark.torch


def loss_of(
    ratios: list[float], advantages: list[float], weights: list[float] | None = None, mask: list[int] | None = None
) -> tuple[TokenLoss, torch.Tensor]:
    """The loss at given ratios; mu is 0.5 for every token."""
    sampler = torch.full((1, len(ratios)), math.log(0.5))
    logprobs = (torch.tensor([ratios]).log() + sampler).requires_grad_(True)
    term = clipped_policy_loss(
        logprobs,
        sampler_logprobs_BK=sampler,
        advantages_BK=torch.tensor([advantages]),
        token_weights_BK=torch.tensor([weights or [1.0] * len(ratios)]),
        loss_mask_BK=torch.tensor([mask or [1] * len(ratios)]).bool(),
        clip_low=0.2,
        clip_high=0.28,
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
        (0.5, -2.0, 1.6, 0.0),
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_clipped_ratio_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    """-min(rho A, clip(rho, .8, 1.28) A); d/dlogprob is -rho A where the clip does not hold, else 0."""
    term, logprobs = loss_of([ratio], [advantage])
    assert term.loss.item() == pytest.approx(loss, rel=1e-5)
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert gradient_of(logprobs).item() == pytest.approx(gradient, rel=1e-5, abs=1e-7)
    assert bool(term.clipped_BK.item()) == (gradient == 0.0)


def test_masked_tokens_give_exactly_nothing() -> None:
    """Even where their ratio would overflow."""
    term, logprobs = loss_of([1.1, 1e30], [1.0, -1.0], weights=[0.5, 0.0], mask=[1, 0])
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert term.loss.item() == pytest.approx(-0.55)
    assert gradient_of(logprobs)[0, 1].item() == 0.0


def test_absurd_ratio_stays_finite() -> None:
    """A token that the trainer finds e^60 times likelier is held at e^20."""
    term, logprobs = loss_of([math.exp(60.0)], [-1.0])
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert term.loss.item() == pytest.approx(math.exp(20.0), rel=1e-4)
    assert gradient_of(logprobs).item() == 0.0


def test_zero_advantage_gives_zero_gradient() -> None:
    """So such rows need not be computed."""
    term, logprobs = loss_of([1.3, 0.4], [0.0, 0.0])
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert term.loss.item() == 0.0
    assert torch.equal(gradient_of(logprobs), torch.zeros_like(logprobs))


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [("token_mean", (1 / 6, 1 / 6)), ("rollout_mean", (1 / 6, 1 / 12)), ("constant", (1 / 30, 1 / 30))],
)
def test_denominators_by_hand(
    aggregation: Literal["token_mean", "rollout_mean", "constant"], weights: tuple[float, float]
) -> None:
    """Three rollouts of 2, 4 and 0 trained tokens: 1/N = 1/6; 1/(3*2), 1/(3*4); 1/(3*10)."""
    denominator = Denominator.of(LossConfig(aggregation=aggregation, constant_tokens=10), {"r0": 2, "r1": 4, "r2": 0})
    assert (denominator.token_weight(2), denominator.token_weight(4)) == pytest.approx(weights)


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("token_mean", 1 / 3), ("rollout_mean", 0.0), ("constant", 1 / 10)]
)
def test_worked_example_of_the_docs(
    aggregation: Literal["token_mean", "rollout_mean", "constant"], expected: float
) -> None:
    """docs/training.md: returns 1 and 0, two and four tokens, rho = 1."""
    denominator = Denominator.of(LossConfig(aggregation=aggregation, constant_tokens=10), {"r0": 2, "r1": 4})
    weights = [denominator.token_weight(n) for n in (2, 4) for _ in range(n)]
    term, _ = loss_of([1.0] * 6, [1.0] * 2 + [-1.0] * 4, weights)
    assert term.loss.item() == pytest.approx(expected, abs=1e-6)


def test_logprobs_are_at_the_sampling_temperature() -> None:
    """Logits (0, ln 3): at T = 1 the second token has 3/4; at T = 0.5, 9/10."""
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, math.log(3.0)]]])
    logprobs = sampled_logprobs(logits, torch.tensor([[1, 1]]), torch.tensor([[1.0, 0.5]]))
    assert logprobs.exp()[0].tolist() == pytest.approx([0.75, 0.9])


def test_shift_of_logits_changes_nothing() -> None:
    """A softmax does not see a constant."""
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    ones = torch.ones(2, 3)
    shifted = sampled_logprobs(logits + 11.0, targets, ones)
    torch.testing.assert_close(shifted, sampled_logprobs(logits, targets, ones), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        shifted, torch.log_softmax(logits, -1).gather(2, targets[..., None])[..., 0], atol=1e-5, rtol=0
    )
