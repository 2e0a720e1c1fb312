"""What is maximised for each token, f(rho, A). Tensor suffixes: B rows, K kept positions."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["clip"]


def clip(
    ratios_BK: Tensor, advantages_BK: Tensor, low: float, high: float, dual: float
) -> tuple[Tensor, Tensor, Tensor]:
    """f = min(rho A, clip(rho, 1 - low, 1 + high) A), for A < 0 at least dual * A.

    PPO's clip (arXiv:1707.06347) with a bound of its own on either side (DAPO, arXiv:2503.14476). For A < 0 it leaves
    rho free upwards, so that one token which the sampler found e^-10 times as likely would be the whole step; the
    second clip (dual-clip PPO, arXiv:1912.09729, c = 3) bounds its weight.

    Returns:
        [B, K] f; where a bound holds the gradient back; where that bound is the second one.
    """
    free_BK = ratios_BK * advantages_BK
    held_BK = ratios_BK.clamp(1.0 - low, 1.0 + high) * advantages_BK
    clipped_BK = torch.minimum(free_BK, held_BK)
    least_BK = torch.where(advantages_BK < 0.0, dual * advantages_BK, -torch.inf)
    bounded_BK = least_BK > clipped_BK
    return torch.where(bounded_BK, least_BK, clipped_BK), (held_BK < free_BK) | bounded_BK, bounded_BK
