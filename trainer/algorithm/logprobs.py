"""What the model says of sampled tokens. Tensor suffixes: B rows, K kept positions, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def sampled_logprobs(logits_BKV: Tensor, targets_BK: Tensor, temperatures_BK: Tensor | None) -> Tensor:
    """log pi of the sampled tokens at the temperature they were sampled with (None: 1), float32 [B, K].

    logsumexp keeps one [B, K, V] tensor for the backward pass where log_softmax keeps two.
    """
    logits_BKV = _tempered(logits_BKV, temperatures_BK)
    chosen_BK = logits_BKV.gather(2, targets_BK[..., None])[..., 0]
    return chosen_BK - torch.logsumexp(logits_BKV, dim=-1)


def logprobs_and_entropies(logits_BKV: Tensor, targets_BK: Tensor, temperatures_BK: Tensor | None) -> Tensor:
    """[2, B, K]: the same, and the entropy H = log sum e^z - sum p z of the distribution at that temperature, in
    nats."""
    logits_BKV = _tempered(logits_BKV, temperatures_BK)
    sums_BK = torch.logsumexp(logits_BKV, dim=-1)
    chosen_BK = logits_BKV.gather(2, targets_BK[..., None])[..., 0]
    means_BK = (torch.softmax(logits_BKV, dim=-1) * logits_BKV).sum(dim=-1)
    return torch.stack([chosen_BK - sums_BK, sums_BK - means_BK])


def _tempered(logits_BKV: Tensor, temperatures_BK: Tensor | None) -> Tensor:
    logits_BKV = logits_BKV.float()
    return logits_BKV if temperatures_BK is None else logits_BKV / temperatures_BK[..., None]
