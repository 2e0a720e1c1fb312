"""What advantages are divided by."""

from __future__ import annotations

import statistics

import pytest

from tracegrad.trainer.algorithm.baseline import leave_one_out
from tracegrad.trainer.algorithm.scale import grpo_std, population_std, unscaled


def test_std_is_the_populations() -> None:
    """Of 1 and 0: sqrt((0.25 + 0.25) / 2) = 0.5."""
    assert population_std([1.0, 0.0]) == 0.5
    assert population_std([0.0, 2.0, 4.0]) == pytest.approx((8 / 3) ** 0.5)


def test_unscaled_is_one() -> None:
    """Whatever the returns."""
    assert unscaled([1.0, 0.0]) == 1.0


def test_leave_one_out_over_each_scale_against_grpos_own_form() -> None:
    """GRPO is (R - mean) / std, ddof 1. `grpo_std` gives exactly it, `population_std` (k / (k - 1))^1.5 times it."""
    returns = [1.0, 0.0, 0.5, 2.0]
    mean, std, k = statistics.mean(returns), statistics.stdev(returns), len(returns)
    grpo = [(value - mean) / std for value in returns]
    baselines = leave_one_out([str(i) for i in range(k)], returns)
    differences = [value - base for value, base in zip(returns, baselines, strict=True)]
    assert [d / grpo_std(returns) for d in differences] == pytest.approx(grpo)
    assert [d / population_std(returns) for d in differences] == pytest.approx([(k / (k - 1)) ** 1.5 * a for a in grpo])
