"""What advantages are divided by."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.scale import sample_std, unscaled, whitened

pytestmark = pytest.mark.torch


def test_std_is_the_samples() -> None:
    """Of 0, 2 and 4: sqrt(8 / 2) = 2; one value alone has none."""
    assert sample_std([0.0, 2.0, 4.0]) == 2.0
    assert sample_std([5.0]) == 0.0


def test_unscaled_is_one() -> None:
    """Whatever the returns."""
    assert unscaled([1.0, 0.0]) == 1.0


def test_whitened_tokens_have_mean_0_and_std_1() -> None:
    """Of 1, 1, 1 and -3: mean 0, std sqrt(12 / 4)."""
    values = torch.tensor([1.0, 1.0, 1.0, -3.0], dtype=torch.float64)
    assert whitened(values).tolist() == pytest.approx([value / 3**0.5 for value in values.tolist()])
    assert whitened(values + 7.0).tolist() == pytest.approx(whitened(values).tolist())


def test_equal_tokens_are_whitened_to_exactly_zero() -> None:
    """0.1 summed seven times rounds."""
    assert whitened(torch.full((7,), 0.1, dtype=torch.float64)).tolist() == [0.0] * 7
