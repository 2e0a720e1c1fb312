"""`[credit]` of the settings file: what calls are worth, and with whom they are compared.

In: values. Out: CreditConfig, whose `resolve` gives what credit computes with. Invariant: keys that a strategy does not
read are refused beside it. Failure: ConfigurationError with the key and the remedy.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.rollouts import PeersRule
from tracegrad.schemas.section import NameOrFunction, Section, declared, nearest

from .strategies.known import GROUP, STRATEGIES, strategy_named
from .strategies.strategy import Strategy, Terms

DEFAULT = "return_to_go"


class Credits(NamedTuple):
    """What credit computes with."""

    strategy: Strategy
    terms: Terms


class CreditConfig(Section, frozen=True, kw_only=True):
    """`[credit]`: what each call of a closed group is worth, and with whom it is compared
    ([streams.md](streams.md#credit) has the formulas).
    """

    strategy: NameOrFunction = DEFAULT
    """`return_to_go`, `broadcast`, `turn` (MT-GRPO), `anchor` (GiGPO), `agent` (RAE); a name that an installed package
    declares (entry points `tracegrad.credit`); or `file.py:function`, of your own."""
    gamma: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Discount from a call to the one before it, of `return_to_go` and `anchor`."""
    peers: PeersRule | None = None
    """Whom a call is compared with in the group's other rollouts: `turn_or_end` the same turn of the same agent, and
    the final reward of a rollout that ended before it; `turn` the same turn alone; `rollout` all turns of the agent.
    None: as the strategy has it, `turn_or_end` of `return_to_go` and `broadcast`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = STRATEGIES.get(self.strategy)
        if known is None:
            if ":" not in self.strategy and self.strategy not in (others := declared(GROUP)):
                raise ConfigurationError(
                    f"strategy: no strategy {self.strategy!r}; {nearest(self.strategy, {*STRATEGIES, *others})}"
                )
            return
        if self.peers not in (None, *known.rules):
            raise ConfigurationError(
                f"peers: strategy {self.strategy!r} names its own, got {self.peers!r}; leave peers out"
            )
        if self.gamma != 1.0 and not known.has_gamma:
            raise ConfigurationError(
                f"gamma: strategy {self.strategy!r} does not discount, got {self.gamma:g}; leave gamma out, or set "
                "strategy = 'return_to_go'"
            )

    @property
    def is_own(self) -> bool:
        """Whether it is none of ours."""
        return self.strategy not in STRATEGIES

    @property
    def rule(self) -> PeersRule:
        """By which rule calls are compared, where the strategy asks it; of a user's own, whether members that ended
        earlier count."""
        known = STRATEGIES.get(self.strategy)
        return self.peers or (known.rules[0] if known else "turn")

    def resolve(self) -> Credits:
        """What credit computes with; a user's code is run. Raises ConfigurationError."""
        return Credits(strategy_named(self.strategy), Terms(self.gamma, self.rule))
