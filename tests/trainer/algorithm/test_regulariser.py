"""Estimators of the KL at a token with pi = .5 and a reference of .25, sampled with rho = 2; by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.regulariser import k1, k2, k3, k3_plus

pytestmark = pytest.mark.torch

LN2 = math.log(2.0)


@pytest.mark.parametrize(
    ("kl", "value", "slope"),
    [
        (k1, LN2, 1.0),
        (k2, LN2**2 / 2, LN2),
        (k3, 0.5 + LN2 - 1.0, 1.0 - 0.5),
        # rho k3; its slope is rho log(pi / reference).
        (k3_plus, 2.0 * (0.5 + LN2 - 1.0), 2.0 * LN2),
    ],
)
def test_value_and_gradient_by_hand(kl: Callable[..., torch.Tensor], value: float, slope: float) -> None:
    """By log pi."""
    logprobs = torch.tensor([0.5]).log().requires_grad_(True)
    got = kl(logprobs, torch.tensor([0.25]).log(), (logprobs - torch.tensor([0.25]).log()).exp())
    got.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert got.item() == pytest.approx(value, rel=1e-5)
    assert logprobs.grad.item() == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("kl", [k1, k2, k3, k3_plus])
def test_equal_policies_are_no_distance_apart(kl: Callable[..., torch.Tensor]) -> None:
    """Exactly."""
    same = torch.tensor([-1.3])
    assert kl(same, same, torch.ones(1)).tolist() == [0.0]
