"""The form that all algorithms share: a recipe's axes put together, for returns and for tokens.

    turn_advantages   returns of turns that are compared -> A
    token_weights     trained tokens of each rollout -> c
    loss              the trained tokens of a micro-batch -> L, with its gradient

In: plain numbers and flat tensors. Invariants: equal returns give advantages of exactly 0 wherever something is
compared; what is no trained token does not come in here; the loss is a sum over given weights, so that micro-batches
and ranks add up to it. Pure. Tensor suffixes: P peers, R rollouts of the batch, N trained tokens, U units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .aggregation import AGGREGATIONS
from .baseline import BASELINES
from .level import clamped, unit_level
from .recipe import Function, Recipe
from .scale import SCALES
from .surrogate import SURROGATES

__all__ = ["TokenLoss", "log_ratios", "loss", "token_weights", "turn_advantages"]

_ROUNDING = 1e-9
"""Below this share of the greatest return a difference is rounding: equal returns must give exactly 0, else every
group without spread would cost a forward pass and feed noise to the optimiser."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss and what to watch, over the tokens of one micro-batch."""

    loss: Tensor
    """Scalar, float64: the sum of weighted terms; carries the gradient."""
    ratios_N: Tensor
    """rho, detached."""
    clipped_N: Tensor
    """Where the surrogate's bounds hold the gradient back."""
    bounded_N: Tensor
    """Where that is the bound on the weight of negative advantages."""


def _chosen(table: Mapping[str, Any], value: str | Function) -> Any:
    """The value of an axis: by its name, or the user's own function."""
    return table[value] if isinstance(value, str) else value


def turn_advantages(recipe: Recipe, rollouts_P: Sequence[str], returns_P: Sequence[float]) -> list[float]:
    """[P] advantages of turns that are compared with each other; `rollouts_P` says whose they are."""
    baselines_P = _chosen(BASELINES, recipe.baseline)(rollouts_P, returns_P)
    rounding = _ROUNDING * max(map(abs, returns_P), default=0.0)
    differences_P = [value - base for value, base in zip(returns_P, baselines_P, strict=True)]
    differences_P = [0.0 if abs(value) <= rounding else value for value in differences_P]
    if not any(differences_P):
        return differences_P  # a std of equal returns is 0, or rounding
    scale = _chosen(SCALES, recipe.scale)(returns_P)
    return [value / scale for value in differences_P]


def token_weights(recipe: Recipe, tokens_R: Sequence[int]) -> list[float]:
    """[R] what one trained token of each rollout weighs in the loss, from the trained tokens of each."""
    weights_R: list[float] = _chosen(AGGREGATIONS, recipe.aggregation)(tokens_R, recipe.length)
    return weights_R


def log_ratios(
    recipe: Recipe, logprobs_N: Tensor, sampler_logprobs_N: Tensor, old_logprobs_N: Tensor | None = None
) -> Tensor:
    """[N] log pi - log of the recipe's anchor; the old policy is pi itself, detached, where it is not told."""
    if recipe.anchor == "sampler":
        return logprobs_N - sampler_logprobs_N
    return logprobs_N - (logprobs_N.detach() if old_logprobs_N is None else old_logprobs_N)


def loss(
    recipe: Recipe,
    *,
    logprobs_N: Tensor,
    sampler_logprobs_N: Tensor,
    advantages_N: Tensor,
    weights_N: Tensor,
    old_logprobs_N: Tensor | None = None,
    units_N: Tensor | None = None,
    unit_means_U: Tensor | None = None,
) -> TokenLoss:
    """The loss of a micro-batch.

    Args:
        logprobs_N: of the sampled tokens, under the weights being trained; float32, with gradient.
        sampler_logprobs_N: under the weights that sampled them.
        advantages_N: A.
        weights_N: c.
        old_logprobs_N: under the weights before the batch's first update; None: this is the first, pi detached.
        units_N: of each token at the recipe's level, int64; not for level `token`.
        unit_means_U: the mean log ratio of every unit of the batch, where some lie in several micro-batches.
    """
    own_N = log_ratios(recipe, logprobs_N, sampler_logprobs_N, old_logprobs_N)
    ratios_N = (clamped(own_N) if units_N is None else unit_level(own_N, units_N, unit_means_U)).exp()
    surrogate = _chosen(SURROGATES, recipe.surrogate)
    terms_N, clipped_N = surrogate(ratios_N, advantages_N, logprobs_N, recipe.low, recipe.high, recipe.dual)
    is_heavy_N = ratios_N.detach() > (recipe.dual or torch.inf)
    return TokenLoss(
        loss=-(terms_N * weights_N).sum(dtype=torch.float64),
        ratios_N=ratios_N.detach(),
        clipped_N=clipped_N,
        bounded_N=is_heavy_N & (advantages_N < 0.0),
    )
