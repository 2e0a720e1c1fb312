"""What each token contributes, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.surrogate import cispo, clip, dppo, reinforce, sapo

pytestmark = pytest.mark.torch

Surrogate = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.0, 1.0, 1.0, 1.0),
        (1.2, 1.0, 1.2, 1.0),
        (1.5, 1.0, 1.28, 0.0),
        (0.5, 1.0, 0.5, 1.0),
        (1.5, -2.0, -3.0, -2.0),
        (2.9, -2.0, -5.8, -2.0),
        (5.0, -2.0, -6.0, 0.0),
        (0.5, -2.0, -1.6, 0.0),
        (0.9, -2.0, -1.8, -2.0),
    ],
)
def test_clip_by_hand(ratio: float, advantage: float, expected: float, slope: float) -> None:
    """min(rho A, clip(rho, .8, 1.28) A), at least 3 A; d/drho is A where no bound holds, else 0."""
    ratios = torch.tensor([ratio], requires_grad=True)
    terms, held = clip(ratios, torch.tensor([advantage]), ratios.log(), 0.2, 0.28, 3.0)
    terms.sum().backward()  # type: ignore[no-untyped-call]
    assert terms.item() == pytest.approx(expected, rel=1e-5)
    assert ratios.grad is not None
    assert ratios.grad.item() == pytest.approx(slope, rel=1e-5)
    assert bool(held.item()) == (slope == 0.0)


def slope_of(surrogate: Surrogate, ratio: float, advantage: float, low: float, high: float) -> tuple[float, bool]:
    """d f / d log pi at mu = .5, and whether a bound holds the gradient back."""
    logprobs = torch.tensor([ratio * 0.5]).log().requires_grad_(True)
    ratios = (logprobs - torch.tensor([0.5]).log()).exp()
    terms, held = surrogate(ratios, torch.tensor([advantage]), logprobs, low, high, None)
    terms.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return logprobs.grad.item(), bool(held.item())


@pytest.mark.parametrize(
    ("surrogate", "ratio", "advantage", "bounds", "slope", "is_held"),
    [
        pytest.param(reinforce, 1.5, 2.0, (0.2, 0.2), 2.0, False, id="reinforce: A, whatever rho"),
        pytest.param(cispo, 1.5, 2.0, (1.0, 4.0), 3.0, False, id="cispo: rho A"),
        pytest.param(cispo, 1.5, 2.0, (1.0, 0.2), 2.4, False, id="cispo: at most 1.2 A"),
        pytest.param(cispo, 0.5, -2.0, (0.2, 0.2), -1.6, False, id="cispo: at least .8 A"),
        pytest.param(sapo, 1.0, 2.0, (1.05, 1.0), 2.0, False, id="sapo: A at rho = 1"),
        # 4 sigmoid' (tau (rho - 1)) rho A: sigmoid'(.5) = .2350037, sigmoid'(-.525) = .2335346
        pytest.param(sapo, 1.5, 2.0, (1.05, 1.0), 4 * 0.2350037 * 1.5 * 2.0, False, id="sapo: tau 1"),
        pytest.param(sapo, 0.5, -2.0, (1.05, 1.0), 4 * 0.2335346 * 0.5 * -2.0, False, id="sapo: tau 1.05"),
        pytest.param(dppo, 1.3, 2.0, (0.2, 0.2), 2.6, False, id="dppo: pi .65 against .5"),
        pytest.param(dppo, 1.5, 2.0, (0.2, 0.2), 0.0, True, id="dppo: pi .75 is too far up"),
        pytest.param(dppo, 1.5, -2.0, (0.2, 0.2), -3.0, False, id="dppo: far up, pushed down"),
        pytest.param(dppo, 0.5, -2.0, (0.2, 0.2), 0.0, True, id="dppo: pi .25 is too far down"),
    ],
)
def test_gradients_by_hand(
    surrogate: Surrogate, ratio: float, advantage: float, bounds: tuple[float, float], slope: float, is_held: bool
) -> None:
    """By log pi."""
    got, got_held = slope_of(surrogate, ratio, advantage, *bounds)
    assert got == pytest.approx(slope, rel=1e-5)
    assert got_held == is_held
