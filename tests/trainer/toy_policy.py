"""A policy of one number a token id, for what must hold of any model: its logprobs are known, its passes are
counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from tests.trainer.material import VOCABULARY
from tracegrad.trainer.algorithm.logprobs import sampled_logprobs
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.groups import Group
from tracegrad.trainer.batch.packing import MicroBatch
from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.step import Learner, StepResult

__all__ = ["ToyPolicy", "learn"]


class ToyPolicy:
    """log pi = theta[id], about -5.5; the entropy at a token is theta squared."""

    device = torch.device("cpu")

    def __init__(self, seed: int) -> None:
        noise = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self.theta = (-5.5 + 0.3 * noise).requires_grad_(True)
        self.masters = {"theta": self.theta}
        self.gradient = torch.zeros(VOCABULARY)
        self.num_passes = 0

    def logprobs(
        self, batch: MicroBatch, *, max_logits: int, score: Callable[..., torch.Tensor] = sampled_logprobs
    ) -> torch.Tensor:
        """[B, K]; with entropies [2, B, K]."""
        self.num_passes += 1
        logprobs_BK = self.theta[batch.targets_BK]
        return logprobs_BK if score is sampled_logprobs else torch.stack([logprobs_BK, logprobs_BK.square()])

    def collect_gradients(self) -> None:
        """Keeps what has come together so far."""
        assert self.theta.grad is not None
        self.gradient = self.theta.grad.clone()

    def refresh(self) -> None:
        """Nothing to round."""


def learn(groups: Sequence[Group], recipe: Recipe, *, max_tokens: int = 4096) -> tuple[StepResult, ToyPolicy]:
    """One step at learning rate 0: what it told, and the gradient."""
    policy, config = ToyPolicy(0), TrainerConfig(lr=0.0, micro_batch_tokens=max_tokens)
    learner = Learner(cast(Any, policy), config, recipe, reference=cast(Any, ToyPolicy(1)))
    rows, _ = learner.rows(groups, {})
    return learner.step(rows, version=0, step=1), policy
