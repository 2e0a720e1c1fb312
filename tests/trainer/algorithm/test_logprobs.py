"""Logprobs of sampled tokens."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.logprobs import logprobs_and_entropies, sampled_logprobs

pytestmark = pytest.mark.torch


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


def test_entropy_is_of_the_tempered_distribution() -> None:
    """Logits (0, ln 3): at T = 1 (1/4, 3/4) has .5623 nats; at T = .5 (1/10, 9/10) has .3251."""
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, math.log(3.0)]]])
    logprobs, entropies = logprobs_and_entropies(logits, torch.tensor([[1, 1]]), torch.tensor([[1.0, 0.5]]))
    assert logprobs.exp()[0].tolist() == pytest.approx([0.75, 0.9])
    assert entropies[0].tolist() == pytest.approx([0.562335, 0.325083], rel=1e-5)
