"""The importance ratio rho = pi / mu, and the logprobs it is made of.

mu are the sampler's own logprobs (`bypass`): no recomputed old policy stands between them and pi.
Tensor suffixes: B rows, K kept positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["sampled_logprobs", "token_ratio"]

MAX_LOG_RATIO = 20.0
"""exp of more would overflow to infinity and make the whole step non-finite for one token of another policy."""


def sampled_logprobs(logits_BKV: Tensor, targets_BK: Tensor, temperatures_BK: Tensor) -> Tensor:
    """log pi of the sampled tokens at the temperature they were sampled with, float32 [B, K].

    logsumexp keeps one [B, K, V] tensor for the backward pass where log_softmax keeps two.
    """
    logits_BKV = logits_BKV.float()
    if bool((temperatures_BK != 1.0).any()):
        logits_BKV = logits_BKV / temperatures_BK[..., None]
    chosen_BK = logits_BKV.gather(2, targets_BK[..., None])[..., 0]
    return chosen_BK - torch.logsumexp(logits_BKV, dim=-1)


def token_ratio(logprobs_BK: Tensor, sampler_logprobs_BK: Tensor, loss_mask_BK: Tensor) -> Tensor:
    """[B, K] rho_t = pi(t) / mu(t); exactly 1, without gradient, outside the mask, whatever stands there.

    log rho is clamped to +-20 (MAX_LOG_RATIO); there the gradient is 0.
    """
    difference_BK = torch.where(loss_mask_BK, logprobs_BK - sampler_logprobs_BK, 0.0)
    return difference_BK.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
