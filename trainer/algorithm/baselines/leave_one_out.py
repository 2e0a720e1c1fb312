"""Leave-one-out baseline (RLOO, arXiv:2402.14740)."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["leave_one_out"]


def leave_one_out(rollouts_P: Sequence[str], returns_P: Sequence[float]) -> list[float]:
    """b_i = mean of R_j over the peers j in other rollouts; R_i itself where there are none, so that A_i is 0.

    A rollout's own other turns are left out with turn i: they share its outcome. Sums are exact (math.fsum), so order
    changes no bit.

    Args:
        rollouts_P: whose turn each of the P peers is.
        returns_P: its return-to-go.
    Returns:
        [P] baselines.
    """
    baselines = []
    for rollout, value in zip(rollouts_P, returns_P, strict=True):
        others = [r for o, r in zip(rollouts_P, returns_P, strict=True) if o != rollout]
        baselines.append(math.fsum(others) / len(others) if others else value)
    return baselines
