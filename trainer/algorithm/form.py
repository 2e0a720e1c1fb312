"""The form that all algorithms share: a recipe's axes put together, for returns and for tokens.

    turn_advantages   returns of a batch's turns -> A
    token_weights     trained tokens of each rollout -> c
    loss              the trained tokens of a micro-batch -> L, with its gradient

In: plain numbers and flat tensors. Invariants: equal returns give advantages of exactly 0 wherever something is
compared; what is no trained token does not come in here; the loss is a sum over given weights, so that micro-batches
and ranks add up to it. Pure. Tensor suffixes: P peers, R rollouts of the batch, N trained tokens, U units.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .aggregation import AGGREGATIONS
from .baseline import BASELINES, running_mean
from .correction import CORRECTIONS
from .level import clamped, unit_level
from .recipe import Function, Recipe
from .regulariser import KLS
from .scale import ROUNDING, SCALES, sample_std
from .selection import overlong
from .surrogate import SURROGATES


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss and what to watch, over the tokens of one micro-batch."""

    loss: Tensor
    """Scalar, float64: the sum of weighted terms; carries the gradient."""
    clipped_N: Tensor
    """Where the surrogate's bounds hold the gradient back."""
    bounded_N: Tensor
    """Where that is the bound on the weight of negative advantages."""
    rejected_N: Tensor
    """Where the correction is 0."""


_MIN_ROLLOUTS = 4
"""With fewer the mean of the others says little of a turn like this one."""


def _chosen(table: Mapping[str, Any], value: str | Function) -> Any:
    """The value of an axis: by its name, or the user's own function."""
    return table[value] if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Turns:
    """P turns of a batch that have a return, with whom they are compared."""

    groups_P: Sequence[str]
    peers_P: Sequence[str]
    """Turns of a group with equal `peers` are compared."""
    rollouts_P: Sequence[str]
    returns_P: Sequence[float]
    lengths_P: Sequence[int]
    """Trained tokens of its rollout."""


def turn_advantages(
    recipe: Recipe, turns: Turns, running: Mapping[str, float] = MappingProxyType({})
) -> tuple[list[float], dict[str, float]]:
    """[P] advantages, and the running means after this batch.

    Args:
        running: by `peers`, the means before it; a recipe without them leaves them alone.
    """
    worth_P = worth(recipe, turns.returns_P, turns.lengths_P)
    is_running = recipe.baseline == "running_mean"
    advantages_P, after = [0.0] * len(worth_P), dict(running)
    for members, asking in _sets(turns, "batch" if is_running else recipe.over):
        values, rollouts = [worth_P[at] for at in members], [turns.rollouts_P[at] for at in members]
        if is_running:
            peers = turns.peers_P[members[0]]
            baselines = [running.get(peers, 0.0)] * len(values)
            after[peers] = running_mean(running.get(peers), rollouts, values, recipe.decay)
        else:
            lengths = [turns.lengths_P[at] for at in members]
            baselines = _chosen(BASELINES, recipe.baseline)(rollouts, values, lengths)
        for at, value in zip(members, _compared(recipe, values, baselines), strict=True):
            if at in asking:
                advantages_P[at] = value
    if recipe.scale == "batch_std" and any(advantages_P):
        std = sample_std(advantages_P)
        advantages_P = [value / std if std else 0.0 for value in advantages_P]
    return advantages_P, after


def _sets(turns: Turns, over: str) -> list[tuple[list[int], frozenset[int]]]:
    """The turns that are compared with each other, and those of them that ask: the others do among turns more like
    them."""
    if over == "nearest":
        return _nearest(turns)
    sets: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for at, (group, peers) in enumerate(zip(turns.groups_P, turns.peers_P, strict=True)):
        sets["" if over == "batch" else group, "" if over == "group" else peers].append(at)
    return [(members, frozenset(members)) for members in sets.values()]


def _nearest(turns: Turns) -> list[tuple[list[int], frozenset[int]]]:
    """By agent and turn, by agent, all: each turn asks in the first of its sets that enough rollouts are in."""
    found: list[tuple[list[int], frozenset[int]]] = []
    asking = set(range(len(turns.peers_P)))
    levels = (turns.peers_P, [_agent_of(peers) for peers in turns.peers_P], None)
    for names in levels:
        sets: defaultdict[str, list[int]] = defaultdict(list)
        for at in range(len(turns.peers_P)):
            sets[names[at] if names else ""].append(at)
        for members in sets.values():
            if names is None or len({turns.rollouts_P[at] for at in members}) >= _MIN_ROLLOUTS:
                found.append((members, frozenset(asking.intersection(members))))
                asking.difference_update(members)
    return [(members, own) for members, own in found if own]


def _agent_of(peers: str) -> str:
    """Of `planner:0`, the planner; of `:0` nobody. Where all turns of an agent are peers its name stands alone."""
    agent, colon, turn = peers.rpartition(":")
    return agent if colon and turn.isdecimal() else peers


def worth(recipe: Recipe, returns_P: Sequence[float], lengths_P: Sequence[int]) -> list[float]:
    """[P] what turns count as: their returns, less by what a rollout of so many trained tokens costs; or 1 and 0."""
    returns_P = list(returns_P)
    if recipe.overlong:
        costs_P = (overlong(length, recipe.overlong, recipe.overlong_buffer) for length in lengths_P)
        returns_P = [value + cost for value, cost in zip(returns_P, costs_P, strict=True)]
    if recipe.outcome == "return":
        return returns_P
    return [1.0 if recipe.outcome == "one" or value >= recipe.bound else 0.0 for value in returns_P]


def _compared(recipe: Recipe, returns_P: Sequence[float], baselines_P: Sequence[float]) -> list[float]:
    """[P] (R - b) / s of turns that are compared with each other."""
    rounding = ROUNDING * max(map(abs, returns_P), default=0.0)
    differences_P = [value - base for value, base in zip(returns_P, baselines_P, strict=True)]
    differences_P = [0.0 if abs(value) <= rounding else value for value in differences_P]
    if not any(differences_P) or recipe.scale in ("batch_std", "whiten"):
        return differences_P
    scale = _chosen(SCALES, recipe.scale)(returns_P)
    return [value / scale if scale else 0.0 for value in differences_P]


def token_weights(recipe: Recipe, tokens_R: Sequence[int], groups_R: Sequence[str]) -> list[float]:
    """[R] what one trained token of each rollout weighs in the loss, from the trained tokens and the group of each."""
    aggregation = _chosen(AGGREGATIONS, recipe.aggregation)
    return list(aggregation(tokens_R, groups_R, recipe.length)) if any(tokens_R) else [0.0] * len(tokens_R)


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
    reference_logprobs_N: Tensor | None = None,
    entropies_N: Tensor | None = None,
    rows_N: Tensor | None = None,
    units_N: Tensor | None = None,
    unit_means_U: Tensor | None = None,
) -> TokenLoss:
    """The loss of a micro-batch.

    Args:
        logprobs_N: of the sampled tokens, under the weights being trained; float32, with gradient.
        sampler_logprobs_N: under the weights that sampled them.
        advantages_N, weights_N: A and c.
        old_logprobs_N: under the weights before the batch's first update; None: this is the first, pi detached.
        reference_logprobs_N: under the reference; for a recipe that needs `reference`.
        entropies_N: of the distribution each token was sampled from, with gradient; for one that needs `entropy`.
        rows_N: each token's row, int64, numbered within the micro-batch; for one with a correction.
        units_N: of each token at the recipe's level, int64; not for level `token`.
        unit_means_U: the mean log ratio of every unit of the batch, where some lie in several micro-batches.
    """
    own_N = log_ratios(recipe, logprobs_N, sampler_logprobs_N, old_logprobs_N)
    ratios_N = (clamped(own_N) if units_N is None else unit_level(own_N, units_N, unit_means_U)).exp()
    surrogate = _chosen(SURROGATES, recipe.surrogate)
    terms_N, clipped_N = surrogate(ratios_N, advantages_N, logprobs_N, recipe.low, recipe.high, recipe.dual)
    rejected_N = torch.zeros_like(clipped_N)
    if recipe.correction != "none":
        old_N = logprobs_N.detach() if old_logprobs_N is None or recipe.correction == "opsm" else old_logprobs_N
        bounds = (recipe.correction_low, recipe.correction_high)
        factors_N = _chosen(CORRECTIONS, recipe.correction)(old_N, sampler_logprobs_N, advantages_N, rows_N, *bounds)
        terms_N, rejected_N = terms_N * factors_N, factors_N == 0.0
    if recipe.beta and recipe.kl_in == "loss":
        others_N = sampler_logprobs_N if recipe.kl_to == "sampler" else reference_logprobs_N
        assert others_N is not None
        terms_N = terms_N - recipe.beta * KLS[recipe.kl](logprobs_N, others_N, clamped(own_N).exp())
    if recipe.entropy:
        assert entropies_N is not None
        terms_N = terms_N + recipe.entropy * entropies_N
    return TokenLoss(
        loss=-(terms_N * weights_N).sum(dtype=torch.float64),
        clipped_N=clipped_N,
        bounded_N=clipped_N & (ratios_N.detach() > (recipe.dual or torch.inf)) & (advantages_N < 0.0),
        rejected_N=rejected_N,
    )
