"""Returns become advantages: leave-one-out over the peers of each turn.

In: the rows of one group (credit has written each turn's return, peers and weight). Out: one advantage per call.
Pure floats; no torch. Masked calls are peers too: what the policy did there was worth what it was worth, even if
their tokens leave the loss. A call that stands in several rows (a shared prefix) counts once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tracegrad.schemas.records.transitions import SegmentRow, Turn

__all__ = ["CallKey", "group_advantages", "leave_one_out"]

CallKey = tuple[str, str]
"""(rollout id, call id)."""

_ROUNDING = 1e-9
"""Below this share of the greatest return a difference is rounding: equal returns must give exactly 0, else every
group without spread would cost a forward pass and feed noise to the optimiser."""


def leave_one_out(rollouts: Sequence[str], returns: Sequence[float], *, scale: bool = False) -> list[float]:
    """Return minus the mean return of the peers in other rollouts (RLOO, arXiv:2402.14740).

    Args:
        rollouts: [P] whose turn it is. Turns of the same rollout are left out together: they share its outcome.
        returns: [P] return-to-go of each turn.
        scale: also divide by the population std of the returns (GRPO, arXiv:2402.03300).
    Returns:
        [P] advantages; 0 where no other rollout has a peer, and where all are equal.
    """
    greatest = max((abs(value) for value in returns), default=0.0)
    advantages = []
    for rollout, value in zip(rollouts, returns, strict=True):
        others = [r for o, r in zip(rollouts, returns, strict=True) if o != rollout]
        advantage = value - math.fsum(others) / len(others) if others else 0.0
        advantages.append(0.0 if abs(advantage) <= _ROUNDING * greatest else advantage)
    if scale and any(advantages):
        mean = math.fsum(returns) / len(returns)
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in returns) / len(returns))
        advantages = [advantage / std for advantage in advantages]
    return advantages


def group_advantages(rows: Iterable[SegmentRow], *, scale: bool = False) -> dict[CallKey, float]:
    """The advantage of each call of a group, times its turn's weight.

    Turns with equal `peers` are compared with each other; order of rows does not matter (exact sums).
    """
    turns: dict[CallKey, Turn] = {}
    for row in rows:
        for turn in row.turns:
            turns.setdefault((row.rollout_id, turn.call_id), turn)
    calls_by_peers: defaultdict[str, list[CallKey]] = defaultdict(list)
    for call, turn in turns.items():
        calls_by_peers[turn.peers].append(call)
    advantages: dict[CallKey, float] = {}
    for calls in calls_by_peers.values():
        values = leave_one_out([rollout for rollout, _ in calls], [turns[call].return_ for call in calls], scale=scale)
        for call, value in zip(calls, values, strict=True):
            advantages[call] = value * turns[call].weight
    return advantages
