"""What makes up for a sampler that is not the policy, by hand: k = 2 and .5 in row 0, 8 in row 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.correction import icepop, opsm, reject_row, tis, tis_row

pytestmark = pytest.mark.torch

Correction = Callable[..., torch.Tensor]
ROWS = torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("correction", "low", "high", "expected"),
    [
        pytest.param(tis, 0.0, 3.0, [2.0, 0.5, 3.0], id="tis: at most 3"),
        pytest.param(tis_row, 0.0, 3.0, [1.0, 1.0, 3.0], id="tis_row: the product, 1 and 8"),
        pytest.param(icepop, 1.0, 5.0, [2.0, 0.0, 0.0], id="icepop: k within [1, 5]"),
        pytest.param(icepop, 0.5, 2.0, [2.0, 0.5, 0.0], id="icepop: bounds are within"),
        pytest.param(reject_row, 0.9, 1.1, [1.0, 1.0, 0.0], id="reject_row: geometric means 1 and 8"),
        # The means of log mu / pi_old are 0 and -ln 8; A < 0 at the second and third token.
        pytest.param(opsm, 0.0, -1.0, [1.0, 0.0, 1.0], id="opsm: above -1 is row 0 alone"),
        pytest.param(opsm, 0.0, 0.5, [1.0, 1.0, 1.0], id="opsm: none above .5"),
    ],
)
def test_corrections_by_hand(correction: Correction, low: float, high: float, expected: list[float]) -> None:
    """Of each token."""
    old = torch.tensor([2.0, 0.5, 8.0], dtype=torch.float64).log()
    got = correction(old, torch.zeros_like(old), torch.tensor([1.0, -1.0, -1.0]), ROWS, low, high)
    assert got.tolist() == pytest.approx(expected, rel=1e-5)


def test_tokens_without_advantage_are_not_masked() -> None:
    """opsm is of A < 0: what it leaves out counts as rejected."""
    far = torch.zeros(2), torch.full((2,), 3.0)
    assert opsm(*far, torch.tensor([0.0, -1.0]), torch.tensor([0, 0]), 0.0, 0.5).tolist() == [1.0, 0.0]
