"""What a return is compared with, b. In: P peers: whose turn each is, and its return. Out: [P] baselines."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

__all__ = ["BASELINES", "leave_one_out"]


def leave_one_out(rollouts_P: Sequence[str], returns_P: Sequence[float]) -> list[float]:
    """b_i = mean over the other rollouts of each one's mean return among the peers; R_i itself where there are none, so
    that A_i is 0 (RLOO, arXiv:2402.14740).

    A rollout counts once, however many of its turns are peers (a call that was made again, or all turns of an agent):
    long rollouts would else be the baseline. Its own other turns are left out with turn i: they share its outcome. Sums
    are exact (math.fsum), so order changes no bit.

    Args:
        rollouts_P: whose turn each of the P peers is.
        returns_P: its return-to-go.
    Returns:
        [P] baselines.
    """
    returns: defaultdict[str, list[float]] = defaultdict(list)
    for rollout, value in zip(rollouts_P, returns_P, strict=True):
        returns[rollout].append(value)
    means = {rollout: math.fsum(values) / len(values) for rollout, values in returns.items()}
    if len(means) < 2:
        return list(returns_P)
    baselines = {
        rollout: math.fsum(mean for other, mean in means.items() if other != rollout) / (len(means) - 1)
        for rollout in means
    }
    return [baselines[rollout] for rollout in rollouts_P]


BASELINES: Mapping[str, Callable[[Sequence[str], Sequence[float]], list[float]]] = {"leave_one_out": leave_one_out}
"""([P] whose turn, [P] returns) -> [P] b."""
