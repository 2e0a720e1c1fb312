"""What each token contributes, by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.surrogate import clip

pytestmark = pytest.mark.torch


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
