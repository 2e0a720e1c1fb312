"""What the advantages of a set of peers are divided by, s. In: their P returns. Out: one number, greater than 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

__all__ = ["SCALES", "grpo_std", "population_std", "unscaled"]


def unscaled(returns_P: Sequence[float]) -> float:
    """s = 1: with leave-one-out it is RLOO (arXiv:2402.14740), k / (k - 1) times Dr. GRPO (arXiv:2503.20783)."""
    return 1.0


def population_std(returns_P: Sequence[float]) -> float:
    """s = the population std of all k = P returns (ddof 0). Not for returns that are all equal.

    Over leave-one-out this is GRPO (arXiv:2402.03300) times (k / (k - 1))^1.5, if each peer is another rollout.
    """
    mean = math.fsum(returns_P) / len(returns_P)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in returns_P) / len(returns_P))


def grpo_std(returns_P: Sequence[float]) -> float:
    """s = std (ddof 1) * k / (k - 1) of all k = P returns. Not for returns that are all equal.

    Over leave-one-out this is exactly GRPO's (R - mean) / std, if each peer is another rollout: R - b is then
    k / (k - 1) times R - mean.
    """
    size = len(returns_P)
    correction: float = (size / (size - 1)) ** 1.5
    return population_std(returns_P) * correction


SCALES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "none": unscaled,
    "std": population_std,
    "grpo": grpo_std,
}
"""[P] returns -> s; asked only where some return differs from its baseline."""
