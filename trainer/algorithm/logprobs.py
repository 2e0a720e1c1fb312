"""What the model says of sampled tokens. Tensor suffixes: B rows, K kept positions, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["sampled_logprobs"]


def sampled_logprobs(logits_BKV: Tensor, targets_BK: Tensor, temperatures_BK: Tensor) -> Tensor:
    """log pi of the sampled tokens at the temperature they were sampled with, float32 [B, K].

    logsumexp keeps one [B, K, V] tensor for the backward pass where log_softmax keeps two.
    """
    logits_BKV = logits_BKV.float()
    if bool((temperatures_BK != 1.0).any()):
        logits_BKV = logits_BKV / temperatures_BK[..., None]
    chosen_BK = logits_BKV.gather(2, targets_BK[..., None])[..., 0]
    return chosen_BK - torch.logsumexp(logits_BKV, dim=-1)
