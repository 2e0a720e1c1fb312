"""The whole form, token by token, in plain numbers: slow, literal, and written from the papers, not from the trainer.

    L = sum_t c_t * [ - keep_t * w_t * f(rho_t, A_t) + beta * kl_t - eta * H_t ]

In: tokens with their logprobs under each policy, and `axes`: a name on each axis and its numbers, spelt as in
references/*.json. Out: L and dL / dlog pi of each token, derived by hand. What is absent from `axes` is off. No clamp
against overflow: not for log ratios beyond some 20.
Failure: KeyError, for a name that no axis has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Axes = Mapping[str, Any]
Term = tuple[float, float]
"""A value, and its derivative by log pi of the token."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One trained token. Units are unique over the batch."""

    rollout: int
    row: int
    turn: int
    group: int
    logprob: float
    """log pi, under the weights being trained."""
    old: float
    """log pi_old, before the batch's first update."""
    sampler: float
    """log mu."""
    reference: float
    entropy: float
    advantage: float


def _unit(tokens: Sequence[Token], token: Token, level: str) -> list[Token]:
    """The trained tokens that share the token's unit, itself among them."""
    return [token] if level == "token" else [one for one in tokens if getattr(one, level) == getattr(token, level)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _anchor(token: Token, axes: Axes) -> float:
    """`self`: the first update of a batch, where pi_old is pi itself."""
    at = {"none": token.old, "decoupled": token.old, "bypass": token.sampler, "self": token.logprob}
    return at[axes.get("anchor", "none")]


def _ratio(tokens: Sequence[Token], token: Token, axes: Axes) -> float:
    """PPO (arXiv:1707.06347) by token; GSPO (arXiv:2507.18071) by unit: the geometric mean over its tokens."""
    unit = _unit(tokens, token, axes.get("level", "token"))
    return math.exp(_mean([one.logprob - _anchor(one, axes) for one in unit]))


def _clip(rho: float, token: Token, axes: Axes) -> Term:
    """min(rho A, clip(rho, 1 - low, 1 + high) A) (arXiv:1707.06347, 2503.14476), at least dual A < 0 (1912.09729)."""
    advantage, dual = token.advantage, axes.get("dual")
    free = rho * advantage
    held = min(max(rho, 1 - axes["low"]), 1 + axes["high"]) * advantage
    value, derivative = (free, free) if free <= held else (held, 0.0)
    if dual is not None and advantage < 0 and dual * advantage > value:
        return dual * advantage, 0.0
    return value, derivative


def _reinforce(rho: float, token: Token, axes: Axes) -> Term:
    """rho A: importance-weighted REINFORCE; rho is 1 at the first update (arXiv:2402.14740)."""
    return rho * token.advantage, rho * token.advantage


def _nll(rho: float, token: Token, axes: Axes) -> Term:
    """A log pi, no ratio: REINFORCE as it is written, and with A = 1 the likelihood (RAFT, arXiv:2304.06767)."""
    advantage = axes.get("advantages", token.advantage)
    return advantage * token.logprob, advantage


def _cispo(rho: float, token: Token, axes: Axes) -> Term:
    """sg(clip(rho, 1 - low, 1 + high)) A log pi (arXiv:2506.13585); low None: no bound below."""
    low = axes.get("low")
    weight = min(max(rho, 0.0 if low is None else 1 - low), 1 + axes["high"])
    return weight * token.advantage * token.logprob, weight * token.advantage


def _sapo(rho: float, token: Token, axes: Axes) -> Term:
    """(4 / tau) sigmoid(tau (rho - 1)) A, tau by the sign of A (arXiv:2511.20347)."""
    tau = axes["tau_pos"] if token.advantage > 0 else axes["tau_neg"]
    gate = 1 / (1 + math.exp(-tau * (rho - 1)))
    return 4 / tau * gate * token.advantage, 4 * gate * (1 - gate) * rho * token.advantage


def _dppo(rho: float, token: Token, axes: Axes) -> Term:
    """sg(rho) A log pi, but 0 where the token's probability has moved in its advantage's direction, away from the
    anchor's, by more than the bound (arXiv:2602.04879)."""
    moved = math.exp(token.logprob) - math.exp(_anchor(token, axes))
    is_held = moved > axes["high"] if token.advantage > 0 else -moved > axes["low"]
    weight = 0.0 if is_held else rho
    return weight * token.advantage * token.logprob, weight * token.advantage


_SURROGATES: Mapping[str, Callable[[float, Token, Axes], Term]] = {
    "cispo": _cispo,
    "clip": _clip,
    "dppo_tv": _dppo,
    "nll": _nll,
    "reinforce": _reinforce,
    "sapo": _sapo,
}


def _correction(tokens: Sequence[Token], token: Token, axes: Axes) -> float:
    """keep * w of a token: made of pi_old and mu, and for `opsm` of pi; without gradient."""
    name, row = axes.get("correction"), _unit(tokens, token, "row")
    ratio = math.exp(token.old - token.sampler)
    product = math.exp(math.fsum(one.old - one.sampler for one in row))
    mean = math.exp(_mean([one.old - one.sampler for one in row]))
    low, high = axes.get("correction_low", 0.0), axes.get("correction_high", math.inf)
    if axes.get("anchor") == "decoupled":  # arXiv:2110.00641, 2505.24298
        return ratio if axes.get("cap") is None else min(ratio, float(axes["cap"]))
    if name == "opsm":  # arXiv:2512.02556
        drift = _mean([one.sampler - one.logprob for one in row])
        return 0.0 if token.advantage < 0 and drift > axes["delta"] else 1.0
    weights: dict[str | None, float] = {
        None: 1.0,
        "tis_token": min(ratio, axes.get("cap", math.inf)),
        "tis_row_product": min(product, axes.get("cap", math.inf)),
        "icepop": ratio if low <= ratio <= high else 0.0,  # arXiv:2510.18855
        "reject_row": float(low <= mean <= high),
    }
    return weights[name]


def _penalty(token: Token, axes: Axes) -> Term:
    """An estimator of KL(pi || other), http://joschu.net/blog/kl-approx.html, and its slope.

    `k3*rho` (arXiv:2512.02556) is weighted by the token's own rho, whose gradient counts: d(rho k3) = rho log(pi /
    other).
    """
    other = token.sampler if axes.get("kl_to") == "sampler" else token.reference
    gap = token.logprob - other
    k3 = math.exp(-gap) - 1 + gap
    rho = math.exp(token.logprob - _anchor(token, axes))
    return {
        "k2": (gap * gap / 2, gap),
        "k3": (k3, 1 - math.exp(-gap)),
        "k3*rho": (rho * k3, rho * gap),
    }[axes["kl"]]


def _share(tokens: Sequence[Token], token: Token, axes: Axes, rollouts: int, groups: int) -> float:
    """c of a token; R and G count what has no trained token too."""
    of_rollout, of_group = _unit(tokens, token, "rollout"), _unit(tokens, token, "group")
    shares: dict[str, float] = {
        "token_mean": 1 / len(tokens),  # arXiv:2503.14476
        "rollout_mean": 1 / (rollouts * len(of_rollout)),  # arXiv:2402.03300
        "group_mean": 1 / (groups * len(of_group)),  # arXiv:2510.13786
        "row_sum": 1 / rollouts,  # arXiv:2402.14740
        "constant": 1 / (rollouts * axes.get("length", 1)),  # arXiv:2503.20783
    }
    return shares[axes["aggregation"]]


def loss(
    tokens: Sequence[Token], axes: Axes, *, rollouts: int | None = None, groups: int | None = None
) -> tuple[float, list[float]]:
    """L and its gradient.

    Args:
        tokens: all trained tokens of the batch.
        axes: a name on each axis.
        rollouts: R, where some have no trained token.
        groups: G, likewise.
    Returns:
        L; [N] dL / dlog pi(t).
    """
    rollouts = rollouts or len({token.rollout for token in tokens})
    groups = groups or len({token.group for token in tokens})
    values, gradients = [], []
    for token in tokens:
        share = _share(tokens, token, axes, rollouts, groups)
        value, derivative = _SURROGATES[axes["surrogate"]](_ratio(tokens, token, axes), token, axes)
        weight = _correction(tokens, token, axes)
        drift, slope = _penalty(token, axes) if "kl" in axes else (0.0, 0.0)
        beta, eta = axes.get("beta", 0.0), axes.get("entropy", 0.0)
        values.append(share * (-weight * value + beta * drift - eta * token.entropy))
        gradients.append(share * (-weight * derivative + beta * slope))
    return math.fsum(values), gradients


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """[K] generalised advantages of K steps, tokens or turns; the value after the last is 0 (arXiv:1506.02438)."""
    deltas = [
        reward + gamma * (values[k + 1] if k + 1 < len(values) else 0.0) - values[k] for k, reward in enumerate(rewards)
    ]
    return [
        math.fsum((gamma * lam) ** (j - k) * delta for j, delta in enumerate(deltas) if j >= k)
        for k in range(len(deltas))
    ]
