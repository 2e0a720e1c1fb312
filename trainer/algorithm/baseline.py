"""What a return is compared with, b.

In: P peers: whose turn each is, its return, and the trained tokens of its rollout. Out: [P] baselines. A rollout counts
once, however many of its turns are peers (a call that was made again, or all turns of an agent): long rollouts would
else be the baseline. Sums are exact (math.fsum), so order changes no bit. Suffix: P peers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence


def none(rollouts_P: Sequence[str], returns_P: Sequence[float], lengths_P: Sequence[int]) -> list[float]:
    """b = 0 (REINFORCE; REINFORCE++, arXiv:2501.03262)."""
    return [0.0] * len(returns_P)


def mean(rollouts_P: Sequence[str], returns_P: Sequence[float], lengths_P: Sequence[int]) -> list[float]:
    """b = the mean over rollouts, its own included (GRPO, arXiv:2402.03300)."""
    means = _rollout_means(rollouts_P, returns_P)
    return [math.fsum(means.values()) / len(means)] * len(returns_P)


def length_weighted(rollouts_P: Sequence[str], returns_P: Sequence[float], lengths_P: Sequence[int]) -> list[float]:
    """b = sum n_r R_r / sum n_r over rollouts, n_r its trained tokens (OPO, arXiv:2505.23585); the mean if all are
    0."""
    means, lengths = _rollout_means(rollouts_P, returns_P), dict(zip(rollouts_P, lengths_P, strict=True))
    total = sum(lengths.values())
    if not total:
        return mean(rollouts_P, returns_P, lengths_P)
    return [math.fsum(lengths[rollout] * value for rollout, value in means.items()) / total] * len(returns_P)


def running_mean(before: float | None, rollouts_P: Sequence[str], returns_P: Sequence[float], decay: float) -> float:
    """The exponential mean of the batches' mean returns with one more batch: a baseline that needs no peers (Williams
    1992; the "moving average" of arXiv:2402.14740, which weighs all batches alike).
    """
    now = mean(rollouts_P, returns_P, ())[0]
    return now if before is None else decay * before + (1.0 - decay) * now


def leave_one_out(rollouts_P: Sequence[str], returns_P: Sequence[float], lengths_P: Sequence[int]) -> list[float]:
    """b_i = mean over the other rollouts of each one's mean return among the peers; R_i itself where there are none, so
    that A_i is 0 (RLOO, arXiv:2402.14740).

    Its own other turns are left out with turn i: they share its outcome.
    """
    means = _rollout_means(rollouts_P, returns_P)
    if len(means) < 2:
        return list(returns_P)
    baselines = {
        rollout: math.fsum(mean for other, mean in means.items() if other != rollout) / (len(means) - 1)
        for rollout in means
    }
    return [baselines[rollout] for rollout in rollouts_P]


def _rollout_means(rollouts_P: Sequence[str], returns_P: Sequence[float]) -> dict[str, float]:
    returns: defaultdict[str, list[float]] = defaultdict(list)
    for rollout, value in zip(rollouts_P, returns_P, strict=True):
        returns[rollout].append(value)
    return {rollout: math.fsum(values) / len(values) for rollout, values in returns.items()}


BASELINES: Mapping[str, Callable[[Sequence[str], Sequence[float], Sequence[int]], list[float]]] = {
    "none": none,
    "mean": mean,
    "leave_one_out": leave_one_out,
    "length_weighted": length_weighted,
}
"""([P] whose turn, [P] returns, [P] trained tokens of its rollout) -> [P] b."""
