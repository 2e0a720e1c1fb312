"""The credit strategies that have a name, and where others come from.

In: what `[credit] strategy` says: a name of STRATEGIES, one that an installed package declares under the entry point
group `tracegrad.credit`, or `file.py:function`. Out: the function, and what it reads of `[credit]`. Failure:
ConfigurationError that begins with the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tracegrad.schemas.records.rollouts import PeersRule
from tracegrad.schemas.section import function_named

from .agent import agent
from .anchor import anchor
from .broadcast import broadcast
from .return_to_go import return_to_go
from .strategy import Strategy
from .turn import turn

_ALL: tuple[PeersRule, ...] = ("turn_or_end", "turn", "rollout")
GROUP = "tracegrad.credit"


class KnownStrategy(NamedTuple):
    """A strategy of ours."""

    function: Strategy
    rules: tuple[PeersRule, ...]
    """Values of `peers` that it can do with, its own first."""
    has_gamma: bool = False
    """Whether it discounts."""


STRATEGIES: Mapping[str, KnownStrategy] = {
    "return_to_go": KnownStrategy(return_to_go, _ALL, has_gamma=True),
    "broadcast": KnownStrategy(broadcast, _ALL),
    "turn": KnownStrategy(turn, ("turn",)),
    "anchor": KnownStrategy(anchor, ("turn",), has_gamma=True),
    "agent": KnownStrategy(agent, ("rollout",)),
}
"""By their name in the settings file."""


def strategy_named(strategy: str) -> Strategy:
    """The function itself, of a name that CreditConfig took; one that is not ours is imported.

    Raises:
        ConfigurationError: its code cannot be run.
    """
    known = STRATEGIES.get(strategy)
    return known.function if known is not None else function_named(strategy, GROUP, "strategy")
