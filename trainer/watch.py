"""What is watched while a batch trains: sums over its trained tokens, made of what the loss needs anyway.

In: each micro-batch with its logprobs and loss terms. Out: fields of StepResult. No forward pass and no gradient of its
own; no figure is ever NaN or infinite. Tensor suffix: N trained tokens of a micro-batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .algorithm.form import TokenLoss
from .batch.packing import MicroBatch

__all__ = ["Watch"]


@dataclass(slots=True)
class Watch:
    """Of one batch, in each update before it moves the weights."""

    num_tokens: int = 0
    ratio_sum: float = 0.0
    num_clipped: int = 0
    num_bounded: int = 0
    num_checked: int = 0
    error_max: float = 0.0

    def add(self, batch: MicroBatch, logprobs_N: Tensor, term: TokenLoss, *, version: int) -> None:
        """One more micro-batch; `version` is that of the weights, -1 of those that moved within the batch."""
        self.num_tokens += len(logprobs_N)
        self.ratio_sum += float(term.ratios_N.sum(dtype=torch.float64))
        self.num_clipped += int(term.clipped_N.sum())
        self.num_bounded += int(term.bounded_N.sum())
        checked_N = batch.versions_N == version
        num_checked = int(checked_N.sum())
        if num_checked:
            # Probabilities are compared at the sampler's own version only: any gap is then an error, not learning.
            error = float((logprobs_N.detach() - batch.sampler_logprobs_N)[checked_N].abs().max())
            self.num_checked += num_checked
            self.error_max = max(self.error_max, error) if math.isfinite(error) else 1e9

    @property
    def is_finite(self) -> bool:
        """Whether the weights gave numbers at every token."""
        return math.isfinite(self.ratio_sum)

    def figures(self) -> dict[str, Any]:
        """The fields of StepResult that are watched."""
        return {
            "logprob_error_max": self.error_max,
            "num_checked_tokens": self.num_checked,
            "ratio_mean": self.ratio_sum / self.num_tokens if self.is_finite else 0.0,
            "clip_fraction": self.num_clipped / self.num_tokens,
            "num_bounded_tokens": self.num_bounded,
        }
