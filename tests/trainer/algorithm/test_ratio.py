"""Ratios and the logprobs they are made of."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.ratio import sampled_logprobs, token_ratio

pytestmark = pytest.mark.torch


def test_ratio_is_pi_over_mu_inside_the_mask() -> None:
    """0.6 / 0.5; outside the mask exactly 1, whatever stands there."""
    logprobs = torch.tensor([[0.6, 0.5, 1e30]]).log()
    ratios = token_ratio(logprobs, torch.full((1, 3), 0.5).log(), torch.tensor([[True, True, False]]))
    assert ratios[0].tolist() == pytest.approx([1.2, 1.0, 1.0])
    assert ratios[0, 2].item() == 1.0


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
