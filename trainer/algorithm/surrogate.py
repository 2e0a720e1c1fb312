"""What is maximised for each token, f(rho, A). Tensor suffix: N trained tokens.

In: rho, A, log pi with its gradient, and the numbers `low`, `high`, `dual`, whose meaning is the surrogate's.
Out: f, and where a bound holds the gradient back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def reinforce(
    ratios_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, low: float, high: float, dual: float | None
) -> tuple[Tensor, Tensor]:
    """f = A log pi: no ratio (Williams 1992; RLOO, arXiv:2402.14740). With A = 1 it is the log likelihood."""
    return advantages_N * logprobs_N, torch.zeros_like(advantages_N, dtype=torch.bool)


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


def cispo(
    ratios_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, low: float, high: float, dual: float | None
) -> tuple[Tensor, Tensor]:
    """f = sg[clip(rho, 1 - low, 1 + high)] A log pi (CISPO, arXiv:2506.13585): what is clipped is the weight of a
    token, not its gradient, so nothing is held back. Others write the upper bound as one number, 1 + high.
    """
    weights_N = ratios_N.detach().clamp(1.0 - low, 1.0 + high)
    return weights_N * advantages_N * logprobs_N, torch.zeros_like(advantages_N, dtype=torch.bool)


def sapo(
    ratios_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, low: float, high: float, dual: float | None
) -> tuple[Tensor, Tensor]:
    """f = (4 / tau) sigmoid(tau (rho - 1)) A, tau = `high` for A > 0, else `low` (SAPO, arXiv:2511.20347): a soft
    bound, whose gradient at rho = 1 is that of rho A.
    """
    taus_N = torch.where(advantages_N > 0.0, high, low)
    soft_N = torch.sigmoid(taus_N * (ratios_N - 1.0)) * 4.0 / taus_N
    return soft_N * advantages_N, torch.zeros_like(advantages_N, dtype=torch.bool)


def dppo(
    ratios_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, low: float, high: float, dual: float | None
) -> tuple[Tensor, Tensor]:
    """f = rho A, and 0 where the token's probability has moved too far the way that A pushes it: by more than `high` up
    for A > 0, `low` down else (DPPO with binary total variation, arXiv:2602.04879). For ratios of tokens.
    """
    pi_N, rho_N = logprobs_N.detach().exp(), ratios_N.detach()
    moved_N = pi_N - pi_N / rho_N
    held_N = torch.where(advantages_N > 0.0, moved_N > high, moved_N < -low)
    return torch.where(held_N, 0.0, ratios_N * advantages_N), held_N


SURROGATES: Mapping[str, Callable[[Tensor, Tensor, Tensor, float, float, float | None], tuple[Tensor, Tensor]]] = {
    "reinforce": reinforce,
    "clip": clip,
    "cispo": cispo,
    "sapo": sapo,
    "dppo": dppo,
}
"""([N] rho, [N] A, [N] log pi, low, high, dual) -> [N] f, [N] bool: where a bound holds the gradient back."""
