"""What rewards are worth: who may give them, and their sum in canonical order.

A reward counts when its source is one of the configured globs. What is missing, has no value or is no usable
number makes the sum unscored, with the reason; none of them is ever read as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from tracegrad.schemas.records.rollouts import Reward, is_usable

__all__ = ["is_authorised", "sum_rewards"]


def is_authorised(reward: Reward, sources: Sequence[str]) -> bool:
    """Whether the reward's source is one that the configuration lists."""
    return any(fnmatchcase(reward.source, source) for source in sources)


def sum_rewards(rewards: Sequence[Reward], awaited: Iterable[str]) -> tuple[float | None, str]:
    """(the episode's reward, why there is none), of rewards that count; those that target a call are not summed."""
    missing = sorted(set(awaited) - {reward.name for reward in rewards})
    if missing:
        return None, f"missing: {', '.join(missing)}"
    values = []
    for reward in rewards:
        if reward.target is None:
            if reward.value is None:
                return None, reward.reason or "unscored"
            if not is_usable(reward.value):
                return None, "out_of_range"
            values.append(reward.value)
    return (math.fsum(values), "") if values else (None, "no_reward")
