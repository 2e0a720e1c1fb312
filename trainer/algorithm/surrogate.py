"""What is maximised for each token, f(rho, A). Tensor suffixes: B rows, K kept positions."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["clip"]


def clip(ratios_BK: Tensor, advantages_BK: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """f = min(rho A, clip(rho, 1 - low, 1 + high) A), and where the clip holds the gradient back.

    PPO's clip (arXiv:1707.06347) with a bound of its own on either side (DAPO, arXiv:2503.14476).
    """
    free_BK = ratios_BK * advantages_BK
    held_BK = ratios_BK.clamp(1.0 - low, 1.0 + high) * advantages_BK
    return torch.minimum(free_BK, held_BK), held_BK < free_BK
