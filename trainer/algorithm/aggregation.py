"""What a trained token's term is divided by: c_t, one number for all trained tokens of a rollout.

In: n_r, the trained tokens of each of the batch's R rollouts (N is their sum), the group of each, and L. Out: [R]
weights, 0 where n_r is 0. Rollouts without advantage are among the R, though their gradient is 0 and they are never
trained: leaving them out would raise the step on batches with few useful groups. Which rollouts count is
`batch/rows.py`'s to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence


def token_mean(tokens_R: Sequence[int], groups_R: Sequence[str], length: int) -> list[float]:
    """c = 1/N: each token alike (DAPO, arXiv:2503.14476)."""
    num_tokens = sum(tokens_R)
    return [1.0 / num_tokens if tokens else 0.0 for tokens in tokens_R]


def rollout_mean(tokens_R: Sequence[int], groups_R: Sequence[str], length: int) -> list[float]:
    """c = 1/(R n_r): each rollout alike (GRPO, arXiv:2402.03300)."""
    return [1.0 / (len(tokens_R) * tokens) if tokens else 0.0 for tokens in tokens_R]


def constant(tokens_R: Sequence[int], groups_R: Sequence[str], length: int) -> list[float]:
    """c = 1/(R L): no length is favoured (Dr. GRPO, arXiv:2503.20783); L = 1 sums over a rollout (RLOO)."""
    return [1.0 / (len(tokens_R) * length) if tokens else 0.0 for tokens in tokens_R]


def group_mean(tokens_R: Sequence[int], groups_R: Sequence[str], length: int) -> list[float]:
    """c = 1/(G N_g): each of the G groups alike, N_g its trained tokens (ScaleRL, arXiv:2510.13786)."""
    tokens_G: Counter[str] = Counter()
    for group, tokens in zip(groups_R, tokens_R, strict=True):
        tokens_G[group] += tokens
    return [
        1.0 / (len(tokens_G) * tokens_G[group]) if tokens else 0.0
        for group, tokens in zip(groups_R, tokens_R, strict=True)
    ]


AGGREGATIONS: Mapping[str, Callable[[Sequence[int], Sequence[str], int], list[float]]] = {
    "token_mean": token_mean,
    "rollout_mean": rollout_mean,
    "group_mean": group_mean,
    "constant": constant,
}
"""([R] trained tokens, [R] groups, L) -> [R] c."""
