"""Which groups train, and what a rollout's length costs. Plain numbers. Suffix: G groups of the batch."""

from __future__ import annotations

from collections.abc import Sequence


def selected(stds_G: Sequence[float], rule: str, share: float) -> list[bool]:
    """Which groups stay, by the std of their rollouts' returns; what goes leaves the denominators.

    `spread`: those with any (the zero-variance filter of DAPO, arXiv:2503.14476, and ScaleRL, arXiv:2510.13786).
    `top_std`: the int(share * G) with the greatest, at least one, the earlier of equal ones (StarPO-S,
    arXiv:2504.20073).
    """
    if rule == "spread":
        return [std > 0.0 for std in stds_G]
    ranked = sorted(range(len(stds_G)), key=lambda group: -stds_G[group])
    chosen = set(ranked[: max(1, int(share * len(stds_G)))] if rule == "top_std" else ranked)
    return [group in chosen for group in range(len(stds_G))]


def overlong(length: int, limit: int, buffer: int) -> float:
    """What is added to the return of a rollout of `length` trained tokens: 0 up to limit - buffer, then down in a line
    to -1 at the limit and beyond (soft overlong punishment, DAPO, arXiv:2503.14476, eq. 13).
    """
    return -min(1.0, max(0, length - (limit - buffer)) / buffer)
