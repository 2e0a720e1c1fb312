"""Learned credit: advantages from what a critic expected, and what the critic learns.

In: rewards of the steps of one rollout, tokens or turns, and V, the value of the state before each. Out: advantages,
or losses of values. V after the last step is 0: a rollout has ended. Pure. Suffixes: K steps, N values asked of the
critic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def generalised(rewards_K: Sequence[float], values_K: Sequence[float], gamma: float, lam: float) -> list[float]:
    """[K] A_k = sum over j >= k of (gamma lam)^(j - k) * (r_j + gamma V_(j+1) - V_j) (GAE, arXiv:1506.02438).

    lam = 1 gives the return minus V_k, lam = 0 the error of one step. A_k + V_k is what V_k should have been
    (TD(lambda)): at gamma = lam = 1 the return-to-go.
    """
    advantages_K = [0.0] * len(rewards_K)
    advantage = next_value = 0.0
    for k in reversed(range(len(rewards_K))):
        advantage = rewards_K[k] + gamma * next_value - values_K[k] + gamma * lam * advantage
        advantages_K[k], next_value = advantage, values_K[k]
    return advantages_K


def value_losses(values_N: Tensor, targets_N: Tensor, old_values_N: Tensor, clip: float | None) -> Tensor:
    """[N] (V - target)^2 / 2; with `clip` the greater of that and the same of V within old V +- clip, so that a value
    which went so far has no gradient to go farther (PPO's, as its authors' code and verl have it).

    Args:
        values_N: with gradient.
        old_values_N: before the batch's first update.
    """
    losses_N = (values_N - targets_N).square()
    if clip is not None:
        within_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
        losses_N = torch.maximum(losses_N, (within_N - targets_N).square())
    return losses_N / 2.0


def explained_variance(values_N: Tensor, targets_N: Tensor) -> float | None:
    """1 - var(target - V) / var(target): 1 for perfect values, 0 for a constant, less for worse than that. None where
    the targets do not vary.
    """
    spread = float(targets_N.var(correction=0)) if len(targets_N) else 0.0
    return 1.0 - float((targets_N - values_N).var(correction=0)) / spread if spread > 0.0 else None
