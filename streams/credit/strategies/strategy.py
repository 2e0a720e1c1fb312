"""What a credit strategy is: a pure function of one group, as ours are and a researcher's own may be.

In: the final episodes of a closed group, in member order, and what `[credit]` says besides. Out: for each member, for
each of its calls, a CallCredit; a plain (return, peers, weight) or (return, peers) does too. Invariant: what it gives
depends on the group alone; what credit excludes (aborted, unscored) is among the members, and what is said of it is
not read. Failure: one that raises, or gives something else, costs its group, never the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import PeersRule, is_usable


class CallCredit(NamedTuple):
    """What one call is worth. Example: CallCredit(1.5, "planner:0")."""

    return_: float
    peers: str
    """Calls of the group with equal `peers` are compared with each other."""
    weight: float = 1.0
    """Times its advantage."""


class Terms(NamedTuple):
    """What `[credit]` says beside the strategy."""

    gamma: float = 1.0
    peers: PeersRule = "turn_or_end"


Strategy = Callable[[Sequence[Episode], Terms], Sequence[Sequence[CallCredit]]]


def final(episode: Episode) -> float:
    """R; 0 of a member without a usable one, which is excluded."""
    return episode.reward if episode.reward is not None and is_usable(episode.reward) else 0.0


def earned(episode: Episode) -> list[list[float]]:
    """r_u of each call: what rules paid it, and rewards that target it."""
    return [[one.value for one in call.rewards if is_usable(one.value)] for call in episode.calls]
