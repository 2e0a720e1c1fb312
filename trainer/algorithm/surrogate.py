"""The policy-gradient loss: a clipped ratio against the sampler's own logprobs, summed over given denominators.

In: logprobs of the sampled tokens under the weights being trained, and the sampler's (`bypass`: no recomputed old
policy stands between them). Out: a sum, so that micro-batches and ranks add up to the same loss.
Invariant: tokens outside the loss mask give exactly 0 to loss and gradient, whatever stands there.

Tensor suffixes: B rows, K kept positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import LossConfig

__all__ = ["Denominator", "TokenLoss", "clipped_policy_loss", "sampled_logprobs"]

MAX_LOG_RATIO = 20.0
"""exp of more would overflow to infinity and make the whole step non-finite for one token of another policy."""


@dataclass(frozen=True, slots=True)
class Denominator:
    """What a trained token's term is divided by, counted over the R rollouts of the batch's trained groups.

    Rollouts without advantage stay in it, though their gradient is 0 and they are never computed: leaving them out
    would raise the step on batches with few useful groups. A member without a trained token stays too, n_r = 0. Not
    counted are groups that the batch consumed and excluded (stale, malformed, nothing to train), and members of a
    trained group that credit excluded (aborted, unscored).
    """

    config: LossConfig
    num_rollouts: int
    """R."""
    num_tokens: int
    """N: trained tokens of all R rollouts."""

    @classmethod
    def of(cls, config: LossConfig, rollout_tokens: Mapping[str, int]) -> Denominator:
        """From n_r of each of the R rollouts, also where it is 0: `metrics.rollout_tokens`."""
        return cls(config, len(rollout_tokens), sum(rollout_tokens.values()))

    def token_weight(self, rollout_tokens: int) -> float:
        """token_mean: 1/N. rollout_mean: 1/(R n_r). constant: 1/(R L)."""
        if self.config.aggregation == "token_mean":
            return 1.0 / self.num_tokens
        if self.config.aggregation == "rollout_mean":
            return 1.0 / (self.num_rollouts * rollout_tokens)
        return 1.0 / (self.num_rollouts * self.config.constant_tokens)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss and what to watch, over the tokens of one micro-batch."""

    loss: Tensor
    """Scalar: the sum of weighted terms; carries the gradient."""
    ratios_BK: Tensor
    """pi / mu, detached; 1 outside the mask."""
    clipped_BK: Tensor
    """Where the clip holds the gradient back."""


def sampled_logprobs(logits_BKV: Tensor, targets_BK: Tensor, temperatures_BK: Tensor) -> Tensor:
    """log pi of the sampled tokens at the temperature they were sampled with, float32 [B, K].

    logsumexp keeps one [B, K, V] tensor for the backward pass where log_softmax keeps two.
    """
    logits_BKV = logits_BKV.float()
    if bool((temperatures_BK != 1.0).any()):
        logits_BKV = logits_BKV / temperatures_BK[..., None]
    chosen_BK = logits_BKV.gather(2, targets_BK[..., None])[..., 0]
    return chosen_BK - torch.logsumexp(logits_BKV, dim=-1)


def clipped_policy_loss(
    logprobs_BK: Tensor,
    *,
    sampler_logprobs_BK: Tensor,
    advantages_BK: Tensor,
    token_weights_BK: Tensor,
    loss_mask_BK: Tensor,
    clip_low: float,
    clip_high: float,
) -> TokenLoss:
    """sum over trained tokens of  -w * min(rho A, clip(rho, 1 - low, 1 + high) A),  rho = pi / mu.

    PPO's clip (arXiv:1707.06347) with asymmetric bounds (DAPO, arXiv:2503.14476), against mu itself instead of a
    recomputed old policy. log rho is clamped to +-20 (MAX_LOG_RATIO); there the gradient is 0.
    """
    difference_BK = torch.where(loss_mask_BK, logprobs_BK - sampler_logprobs_BK, 0.0)
    ratios_BK = difference_BK.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    free_BK = ratios_BK * advantages_BK
    held_BK = ratios_BK.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_BK
    loss = -(torch.minimum(free_BK, held_BK) * token_weights_BK).sum()
    return TokenLoss(loss=loss, ratios_BK=ratios_BK.detach(), clipped_BK=(held_BK < free_BK).detach())
