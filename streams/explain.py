"""Why each call of an episode is worth what it is: the parts that its return is the sum of.

In: an episode's record, `[credit]`, `[air]`. Out: for each call its return, by the strategy itself, and the parts: the
final reward and what calls earned, each times what it counts here, with the signal that a rule paid it for. Pure.
Invariant: parts add up to the return, to the bit where nothing is discounted. Failure: a strategy of the user's own has
no parts that we know, so its return stands alone. What was said of a conversation after its close is not on the record;
streams/ratings.py adds it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tracegrad.schemas.records.episodes import AIR_RULE, Episode
from tracegrad.schemas.records.rollouts import is_usable

from .assemble.air.apply import payments
from .assemble.air.rules import AirConfig
from .assemble.air.signals import Signal
from .credit.config import CreditConfig
from .credit.strategies.peers import peers_of_group
from .credit.strategies.rated import ratings_of
from .credit.strategies.strategy import CallCredit, final


class ReturnPart(NamedTuple):
    """One number in the sum."""

    what: str
    """`final`, or the name of the reward (`air:tool_success`)."""
    call_id: str
    """The call that earned it; empty of the final reward."""
    value: float
    factor: float
    """What it counts for this call, gamma's power."""
    why: str = ""
    """The signal that the rule paid for, if the rules are the ones that paid."""


class ExplainedCall(NamedTuple):
    """One call."""

    call_id: str
    credit: CallCredit
    parts: tuple[ReturnPart, ...]

    @property
    def sum(self) -> float:
        """Of its parts."""
        return math.fsum(part.value * part.factor for part in self.parts)


def explain(episode: Episode, credit: CreditConfig, air: AirConfig) -> list[ExplainedCall]:
    """Each call of the episode; reasons are told where `air` is what it was rewarded by."""
    strategy, terms = credit.resolve()
    (credits,) = strategy([episode], terms)
    whys = _whys(episode, air) if episode.air_rules == air.digest else {}
    earned = [
        [
            ReturnPart(one.rule, call.call_id, one.value, 1.0, whys.get((place, number), ""))
            for number, one in enumerate(call.rewards)
            if is_usable(one.value)
        ]
        for place, call in enumerate(episode.calls)
    ]
    return [
        ExplainedCall(call.call_id, one, () if credit.is_own else tuple(_parts(episode, credit, earned, place)))
        for place, (call, one) in enumerate(zip(episode.calls, credits, strict=True))
    ]


def _parts(
    episode: Episode, credit: CreditConfig, earned: Sequence[Sequence[ReturnPart]], place: int
) -> Iterator[ReturnPart]:
    """Of the call at a place, as its strategy's formula has them."""
    calls, strategy = episode.calls, credit.strategy
    if strategy != "turn":
        num_later = len(calls) - 1 - place if strategy in ("return_to_go", "anchor") else 0
        yield ReturnPart("final", "", final(episode), credit.gamma**num_later)
    if strategy == "turn":
        yield from earned[place]
    elif strategy == "agent":
        (agents,) = peers_of_group([episode], "rollout")
        for agent, own in zip(agents, earned, strict=True):
            yield from own if agent == agents[place] else ()
    elif strategy != "broadcast":
        for later, own in enumerate(earned[place:]):
            for part in own:
                if episode.rollout_id is not None or part.what.startswith(AIR_RULE):
                    yield part._replace(factor=credit.gamma**later)
        if episode.rollout_id is None:
            yield from (ReturnPart("rating", "", value, 1.0) for value in ratings_of(calls)[place])


def _whys(episode: Episode, air: AirConfig) -> dict[tuple[int, int], str]:
    """(place of the call, number of its reward) -> why; AIR's rewards are a call's first, the rules' before others."""
    nums: defaultdict[int, int] = defaultdict(int)
    found = {}
    for payment in payments(air, episode):
        found[payment.place, nums[payment.place]] = _words(payment.signal)
        nums[payment.place] += 1
    return found


def _words(signal: Signal | None) -> str:
    if signal is None:
        return "shaping, taken back"
    told = {
        "status": signal.status,
        "http": signal.http_status,
        "finish_reason": signal.finish_reason,
        "seconds": signal.seconds,
        "tokens": signal.tokens,
        "turns": signal.turns,
        "score": signal.score,
        "unparsable": signal.unparsable or None,
        "repeated": signal.repeated or None,
    }
    facts = " ".join(f"{key}={_short(value)}" for key, value in told.items() if value is not None)
    return " ".join(filter(None, (signal.on, signal.name, facts)))


def _short(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
