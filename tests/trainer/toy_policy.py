"""A policy of one number a token id, for what must hold of any model: its logprobs are known, its passes are
counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from tests.trainer.material import VOCABULARY
from tracegrad.schemas.records.training import StepResult
from tracegrad.trainer.algorithm.logprobs import sampled_logprobs
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.groups import Group
from tracegrad.trainer.batch.packing import MicroBatch
from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.model.critic import Critic


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

    width = 4

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """[B, K, D], by target: a critic's trunk."""
        return torch.stack([torch.cos(batch.targets_BK * (d + 1.0)) for d in range(self.width)], dim=-1)

    def collect_gradients(self) -> None:
        """Keeps what has come together so far."""
        assert self.theta.grad is not None
        self.gradient = self.theta.grad.clone()

    def refresh(self) -> None:
        """Nothing to round."""


def critic_of(policy: ToyPolicy, **changes: Any) -> Critic:
    """Whose values are no longer 0."""
    critic = Critic(cast(Any, policy), TrainerConfig(**{"critic_lr": 0.0, **changes}))
    critic.restore({"head.weight": torch.linspace(-0.5, 0.7, policy.width), "head.bias": torch.tensor([0.1])})
    return critic


def learn(groups: Sequence[Group], recipe: Recipe, *, max_tokens: int = 4096) -> tuple[StepResult, ToyPolicy]:
    """One step at learning rate 0: what it told, and the gradient."""
    policy, config = ToyPolicy(0), TrainerConfig(lr=0.0, micro_batch_tokens=max_tokens)
    critic = critic_of(policy) if "values" in recipe.needs else None
    learner = SingleLearner(cast(Any, policy), config, recipe, reference=cast(Any, ToyPolicy(1)), critic=critic)
    rows, _ = learner.rows(groups, {})
    return learner.step(rows, version=0, step=1), policy
