"""The level of the importance ratio: rho of each token alone, or one rho for all tokens of a unit.

In: log pi - log anchor of the trained tokens of a micro-batch, and each token's unit (its turn, row or rollout, as a
number that no other unit of the batch has). Out: log rho. Tensor suffixes: N trained tokens, U units.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp of more would overflow to infinity and make the whole step non-finite for one token of another policy."""


def clamped(log_ratios_N: Tensor) -> Tensor:
    """[N] log rho within +-20; beyond, the gradient is 0. Of tokens: PPO's ratio (arXiv:1707.06347)."""
    return log_ratios_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def unit_level(log_ratios_N: Tensor, units_N: Tensor, means_U: Tensor | None = None) -> Tensor:
    """[N] log rho = the mean log ratio of the token's unit (GSPO, arXiv:2507.18071, eq. 7 for rows).

    The value is the unit's, the gradient goes through each token's own logprob (GSPO-token, eq. 14): summed over a unit
    it is the gradient of its mean, so that a unit may lie in several micro-batches.

    Args:
        log_ratios_N: log pi - log anchor.
        units_N: whose token it is, int64.
        means_U: of all units of the batch, where one does not lie in this micro-batch as a whole; None: taken here.
    """
    if means_U is None:
        _, units_N = torch.unique(units_N, return_inverse=True)
        means_U = unit_means(log_ratios_N, units_N, int(units_N.max()) + 1 if len(units_N) else 0)
    own_N = log_ratios_N - log_ratios_N.detach()
    return clamped(means_U[units_N].to(log_ratios_N.dtype) + own_N)


def unit_means(values_N: Tensor, units_N: Tensor, num_units: int) -> Tensor:
    """[U] mean of each unit's tokens, float64 and detached; 0 for a unit without tokens."""
    return unit_sums(values_N, units_N, num_units) / torch.bincount(units_N, minlength=num_units).clamp(min=1)


def unit_sums(values_N: Tensor, units_N: Tensor, num_units: int) -> Tensor:
    """[U] sum over each unit's tokens, float64 and detached."""
    sums_U = torch.zeros(num_units, dtype=torch.float64, device=values_N.device)
    return sums_U.index_add_(0, units_N, values_N.detach().double())
