"""What advantages are divided by."""

from __future__ import annotations

import pytest

from tracegrad.trainer.algorithm.scale import population_std, unscaled


def test_std_is_the_populations() -> None:
    """Of 1 and 0: sqrt((0.25 + 0.25) / 2) = 0.5."""
    assert population_std([1.0, 0.0]) == 0.5
    assert population_std([0.0, 2.0, 4.0]) == pytest.approx((8 / 3) ** 0.5)


def test_unscaled_is_one() -> None:
    """Whatever the returns."""
    assert unscaled([1.0, 0.0]) == 1.0
