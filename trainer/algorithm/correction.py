"""What makes up for a sampler that is not the policy: one factor a token, keep * w, from k = pi_old / mu alone (`opsm`:
from mu and pi as it is now).

In: log pi_old, log mu, A, each token's row (numbered within the micro-batch, where all of it lies), and two numbers.
Out: the factor of f, without gradient; 0 rejects a token, which stays in the denominator. Suffix: N trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from .level import clamped, unit_means, unit_sums


def tis(
    old_logprobs_N: Tensor, sampler_logprobs_N: Tensor, advantages_N: Tensor, rows_N: Tensor, low: float, high: float
) -> Tensor:
    """min(k, high) of each token: truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training"; the decoupled objective's weight, arXiv:2110.00641, arXiv:2505.24298).
    """
    return clamped(old_logprobs_N - sampler_logprobs_N).exp().clamp(max=high)


def tis_row(
    old_logprobs_N: Tensor, sampler_logprobs_N: Tensor, advantages_N: Tensor, rows_N: Tensor, low: float, high: float
) -> Tensor:
    """min(the product of k over the row, high): the same by sequence, as verl has it."""
    sums_B = unit_sums(old_logprobs_N - sampler_logprobs_N, rows_N, _num(rows_N))
    return clamped(sums_B).exp().clamp(max=high)[rows_N].to(old_logprobs_N.dtype)


def icepop(
    old_logprobs_N: Tensor, sampler_logprobs_N: Tensor, advantages_N: Tensor, rows_N: Tensor, low: float, high: float
) -> Tensor:
    """k where low <= k <= high, else 0 (IcePop, arXiv:2510.18855)."""
    k_N = clamped(old_logprobs_N - sampler_logprobs_N).exp()
    return k_N * ((k_N >= low) & (k_N <= high))


def reject_row(
    old_logprobs_N: Tensor, sampler_logprobs_N: Tensor, advantages_N: Tensor, rows_N: Tensor, low: float, high: float
) -> Tensor:
    """1 where the geometric mean of k over the row lies in [low, high], else 0 (rejection by sequence, as verl has
    it)."""
    means_B = clamped(unit_means(old_logprobs_N - sampler_logprobs_N, rows_N, _num(rows_N))).exp()
    return ((means_B >= low) & (means_B <= high))[rows_N].to(old_logprobs_N.dtype)


def opsm(
    logprobs_N: Tensor, sampler_logprobs_N: Tensor, advantages_N: Tensor, rows_N: Tensor, low: float, high: float
) -> Tensor:
    """0 where A < 0 and the row's mean of log mu - log pi is above `high`, else 1: off-policy sequence masking
    (DeepSeek-V3.2, arXiv:2512.02556, eq. 9). pi is the present policy, detached, as there and in TRL: in later updates
    of a batch a row may go that stayed in the first, so that what the batch itself has pushed away is held too.
    """
    means_B = unit_means(sampler_logprobs_N - logprobs_N, rows_N, _num(rows_N))
    return 1.0 - ((means_B[rows_N] > high) & (advantages_N < 0.0)).to(logprobs_N.dtype)


def _num(rows_N: Tensor) -> int:
    return int(rows_N.max()) + 1 if len(rows_N) else 0


CORRECTIONS: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor, float, float], Tensor]] = {
    "tis": tis,
    "tis_row": tis_row,
    "icepop": icepop,
    "reject_row": reject_row,
    "opsm": opsm,
}
"""([N] log pi_old, [N] log mu, [N] A, [N] row, low, high) -> [N] keep * w; all without gradient. `opsm` is given log pi
for log pi_old."""
