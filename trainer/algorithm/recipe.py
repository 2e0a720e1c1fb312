"""The form that all algorithms here share, and a table of what each of its axes can be.

    A_i = (R_i - b_i) / s                                 baselines/, scale.py
    L   = - sum over trained tokens t of  c_t * f(rho_t, A_t)     aggregation.py, surrogate.py, ratio.py

A recipe is data: a name on each axis, and the numbers that belong to it. A new baseline is its own file under
`baselines/` and one row in BASELINES; so for the other axes. All of it takes plain numbers and tensors.
Invariants: equal returns give advantages of exactly 0; tokens outside the loss mask give exactly 0 to loss and
gradient, whatever stands there; the loss is a sum over given weights, so that micro-batches and ranks add up to it.
Tensor suffixes: P peers, R rollouts of the batch, B rows, K kept positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from .aggregation import constant, rollout_mean, token_mean
from .baselines.leave_one_out import leave_one_out
from .ratio import token_ratio
from .scale import grpo_std, population_std, unscaled
from .surrogate import clip

__all__ = ["AGGREGATIONS", "BASELINES", "RATIOS", "SCALES", "SURROGATES", "Recipe", "TokenLoss"]

BASELINES: Mapping[str, Callable[[Sequence[str], Sequence[float]], list[float]]] = {
    "leave_one_out": leave_one_out,
}
"""([P] whose turn, [P] returns) -> [P] b."""
SCALES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "none": unscaled,
    "std": population_std,
    "grpo": grpo_std,
}
"""[P] returns -> s; asked only where some return differs from its baseline."""
RATIOS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token": token_ratio,
}
"""([B, K] log pi, [B, K] log mu, [B, K] loss mask) -> [B, K] rho."""
SURROGATES: Mapping[str, Callable[[Tensor, Tensor, float, float, float], tuple[Tensor, Tensor, Tensor]]] = {
    "clip": clip,
}
"""([B, K] rho, [B, K] A, low, high, dual) -> [B, K] f; where bounds hold the gradient back; where that is `dual`."""
AGGREGATIONS: Mapping[str, Callable[[Sequence[int], int], list[float]]] = {
    "token_mean": token_mean,
    "rollout_mean": rollout_mean,
    "constant": constant,
}
"""([R] trained tokens, L) -> [R] c."""

_ROUNDING = 1e-9
"""Below this share of the greatest return a difference is rounding: equal returns must give exactly 0, else every
group without spread would cost a forward pass and feed noise to the optimiser."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss and what to watch, over the tokens of one micro-batch."""

    loss: Tensor
    """Scalar: the sum of weighted terms; carries the gradient."""
    ratios_BK: Tensor
    """rho, detached; 1 outside the mask."""
    clipped_BK: Tensor
    """Where the surrogate's bounds hold the gradient back."""
    bounded_BK: Tensor
    """Where that is the bound on the weight of negative advantages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A point on each axis. Example: Recipe(scale="std", aggregation="rollout_mean")."""

    baseline: str = "leave_one_out"
    scale: str = "none"
    ratio: str = "token"
    surrogate: str = "clip"
    low: float = 0.2
    """The surrogate's bound below."""
    high: float = 0.28
    """... and above."""
    dual: float = 3.0
    """... on the weight of a negative advantage."""
    aggregation: str = "token_mean"
    length: int = 1024
    """L of `constant`."""

    def advantages(self, rollouts_P: Sequence[str], returns_P: Sequence[float]) -> list[float]:
        """[P] advantages of turns that are compared with each other; `rollouts_P` says whose they are."""
        baselines_P = BASELINES[self.baseline](rollouts_P, returns_P)
        rounding = _ROUNDING * max(map(abs, returns_P), default=0.0)
        differences_P = [value - base for value, base in zip(returns_P, baselines_P, strict=True)]
        differences_P = [0.0 if abs(value) <= rounding else value for value in differences_P]
        if not any(differences_P):
            return differences_P  # a std of equal returns is 0, or rounding
        scale = SCALES[self.scale](returns_P)
        return [value / scale for value in differences_P]

    def token_weights(self, tokens_R: Sequence[int]) -> list[float]:
        """[R] what one trained token of each rollout weighs in the loss, from the trained tokens of each."""
        return AGGREGATIONS[self.aggregation](tokens_R, self.length)

    def loss(
        self,
        logprobs_BK: Tensor,
        *,
        sampler_logprobs_BK: Tensor,
        advantages_BK: Tensor,
        token_weights_BK: Tensor,
        loss_mask_BK: Tensor,
    ) -> TokenLoss:
        """The loss of a micro-batch.

        Args:
            logprobs_BK: of the sampled tokens, under the weights being trained.
            sampler_logprobs_BK: under the weights that sampled them.
            advantages_BK: A.
            token_weights_BK: c, 0 outside the mask.
            loss_mask_BK: bool, what trains.
        """
        ratios_BK = RATIOS[self.ratio](logprobs_BK, sampler_logprobs_BK, loss_mask_BK)
        surrogate = SURROGATES[self.surrogate]
        terms_BK, clipped_BK, bounded_BK = surrogate(ratios_BK, advantages_BK, self.low, self.high, self.dual)
        return TokenLoss(
            loss=-(terms_BK * token_weights_BK).sum(),
            ratios_BK=ratios_BK.detach(),
            clipped_BK=clipped_BK.detach(),
            bounded_BK=bounded_BK.detach(),
        )
