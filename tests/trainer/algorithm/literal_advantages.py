"""Advantages, rollout by rollout, in plain numbers: slow, literal, and written from the papers, not from the trainer.

    A_i = (R_i - b_i) / s        one a rollout, or one a trained token where a penalty or a critic tells tokens apart

In: rollouts with their rewards, and `axes`, spelt as in references/*.json. Out: [R][n_r] advantages of trained tokens.
Failure: KeyError, for a name that no axis has; ZeroDivisionError, for a std of returns that are all alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Rollout", "advantages", "gae"]

Axes = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What came of one rollout."""

    group: int
    reward: float
    kls: Sequence[float]
    """[n_r] log(pi_old / reference) of its trained tokens."""


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float], ddof: int) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def _baseline(rollouts: Sequence[Rollout], index: int, rewards: Sequence[float], axes: Axes) -> float:
    group = rollouts[index].group
    peers = [i for i, one in enumerate(rollouts) if axes.get("over") == "batch" or one.group == group]
    lengths = [len(rollouts[i].kls) for i in peers]
    others = [rewards[i] for i in peers if i != index]
    name = axes["baseline"]
    if name == "none":
        return 0.0
    if name == "mean":  # GRPO, arXiv:2402.03300
        return _mean([rewards[i] for i in peers])
    if name == "leave_one_out":  # RLOO, arXiv:2402.14740
        return _mean(others) if others else rewards[index]
    if name == "length":  # OPO, arXiv:2505.23585
        return math.fsum(n * rewards[i] for n, i in zip(lengths, peers, strict=True)) / sum(lengths)
    raise KeyError(name)


def _returns(rollout: Rollout, value: float, beta: float) -> list[float]:
    """[n_r] undiscounted sums from each token on, of -beta k1 by token and `value` at the last one."""
    return [value - beta * math.fsum(rollout.kls[t:]) for t in range(len(rollout.kls))]


def _scaled(rollouts: Sequence[Rollout], by_token: list[list[float]], axes: Axes) -> list[list[float]]:
    """Divided by s; `whiten` (REINFORCE++, arXiv:2501.03262) also takes off the mean over all trained tokens."""
    name, ddof = axes["scale"], axes.get("ddof", 1)
    flat = [value for values in by_token for value in values]
    if name == "none":
        return by_token
    if name == "whiten":
        mean, std = _mean(flat), _std(flat, ddof)
        return [[(value - mean) / std for value in values] for values in by_token]
    made = []
    for rollout, values in zip(rollouts, by_token, strict=True):
        if not any(values):
            made.append(values)  # returns that are all alike: 0, not 0 / 0
            continue
        rewards = [one.reward for one in rollouts if name != "std" or one.group == rollout.group]
        if name == "batch_std_of_advantages":  # arXiv:2510.13786; their mean is 0
            rewards = [values[0] for values in by_token]
        made.append([value / _std(rewards, ddof) for value in values])
    return made


def advantages(rollouts: Sequence[Rollout], axes: Axes) -> list[list[float]]:
    """[R][n_r] advantages.

    `kl`: "k1_in_reward_by_rollout" takes beta times the sum of k1 off a rollout's reward, before the baseline (RLOO as
    its paper has it); "k1_in_reward" takes beta k1 off each token's, after the baseline.
    """
    beta = axes.get("beta", 0.0) if "kl" in axes else 0.0
    is_by_rollout = axes.get("kl") == "k1_in_reward_by_rollout"
    rewards = [one.reward - (beta * math.fsum(one.kls) if is_by_rollout else 0.0) for one in rollouts]
    differences = [rewards[i] - _baseline(rollouts, i, rewards, axes) for i in range(len(rollouts))]
    tokenwise = 0.0 if is_by_rollout else beta
    by_token = [_returns(one, value, tokenwise) for one, value in zip(rollouts, differences, strict=True)]
    return _scaled(rollouts, by_token, axes)


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """[K] generalised advantages of K steps, tokens or turns; the value after the last is 0 (arXiv:1506.02438)."""
    deltas = [
        reward + gamma * (values[k + 1] if k + 1 < len(values) else 0.0) - values[k] for k, reward in enumerate(rewards)
    ]
    return [
        math.fsum((gamma * lam) ** (j - k) * delta for j, delta in enumerate(deltas) if j >= k)
        for k in range(len(deltas))
    ]
