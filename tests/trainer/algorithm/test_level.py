"""Whose ratio it is, by hand."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.level import clamped, unit_level, unit_means

pytestmark = pytest.mark.torch


def test_a_units_ratio_is_the_geometric_mean_of_its_tokens() -> None:
    """Ratios 2 and 8 of unit 5: 4 for both; 3 of unit 7 alone."""
    log_ratios = torch.tensor([2.0, 8.0, 3.0]).log()
    assert unit_level(log_ratios, torch.tensor([5, 5, 7])).exp().tolist() == pytest.approx([4.0, 4.0, 3.0])


def test_gradient_goes_through_each_tokens_own_logprob() -> None:
    """d exp(mean) / d logp_t = exp(mean) / n, summed over n equal terms: each token gets the unit's ratio."""
    log_ratios = torch.tensor([2.0, 8.0]).log().requires_grad_(True)
    unit_level(log_ratios, torch.tensor([0, 0])).exp().mean().backward()  # type: ignore[no-untyped-call]
    assert log_ratios.grad is not None
    assert log_ratios.grad.tolist() == pytest.approx([4.0 / 2, 4.0 / 2])


def test_a_unit_in_two_micro_batches_is_one() -> None:
    """By the batch's means: 2 here and 8 there are 4 in both."""
    log_ratios, units = torch.tensor([2.0, 8.0]).log(), torch.tensor([1, 1])
    means = unit_means(log_ratios, units, 2)
    assert means.tolist() == pytest.approx([0.0, math.log(4.0)])
    for at in (slice(0, 1), slice(1, 2)):
        assert unit_level(log_ratios[at], units[at], means).exp().tolist() == pytest.approx([4.0])


def test_log_ratios_are_bounded() -> None:
    """By 20 either way, whatever a token says."""
    assert clamped(torch.tensor([60.0, -60.0, 1.0])).tolist() == [20.0, -20.0, 1.0]
    assert unit_level(torch.tensor([60.0]), torch.tensor([0])).tolist() == [20.0]
