"""What the advantages of a set of peers are divided by, s. In: their P returns. Out: one number, greater than 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["population_std", "unscaled"]


def unscaled(returns_P: Sequence[float]) -> float:
    """s = 1 (Dr. GRPO, arXiv:2503.20783)."""
    return 1.0


def population_std(returns_P: Sequence[float]) -> float:
    """s = the population std of all P returns (ddof 0; GRPO, arXiv:2402.03300). Not for returns that are all equal."""
    mean = math.fsum(returns_P) / len(returns_P)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in returns_P) / len(returns_P))
