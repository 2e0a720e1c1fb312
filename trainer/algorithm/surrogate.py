"""What is maximised for each token, f(rho, A). Tensor suffix: N trained tokens.

In: rho, A, log pi with its gradient, and the numbers `low`, `high`, `dual`, whose meaning is the surrogate's.
Out: f, and where a bound holds the gradient back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

__all__ = ["SURROGATES", "clip"]


def clip(
    ratios_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, low: float, high: float, dual: float | None
) -> tuple[Tensor, Tensor]:
    """f = min(rho A, clip(rho, 1 - low, 1 + high) A), for A < 0 at least dual * A.

    PPO's clip (arXiv:1707.06347) with a bound of its own on either side (DAPO, arXiv:2503.14476). For A < 0 it leaves
    rho free upwards, so that one token which the sampler found e^-10 times as likely would be the whole step; the
    second clip (dual-clip PPO, arXiv:1912.09729, c = 3) bounds its weight.
    """
    free_N = ratios_N * advantages_N
    bound_N = ratios_N.clamp(1.0 - low, 1.0 + high) * advantages_N
    clipped_N, held_N = torch.minimum(free_N, bound_N), bound_N < free_N
    if dual is None:
        return clipped_N, held_N
    least_N = torch.where(advantages_N < 0.0, dual * advantages_N, -torch.inf)
    bounded_N = least_N > clipped_N
    return torch.where(bounded_N, least_N, clipped_N), held_N | bounded_N


SURROGATES: Mapping[str, Callable[[Tensor, Tensor, Tensor, float, float, float | None], tuple[Tensor, Tensor]]] = {
    "clip": clip,
}
"""([N] rho, [N] A, [N] log pi, low, high, dual) -> [N] f, [N] bool: where a bound holds the gradient back."""
