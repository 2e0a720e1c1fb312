"""Applies the rules to an episode: which call earned what.

In: `[air]`, an Episode. Out: the episode with its automatic rewards, in place of any that it had, and the digest of the
rules. A pure function of the record: asked of history under other rules it gives what they would have paid. Within a
call signals pay in their order and, for each signal, rules in theirs; a rule that reached its cap pays no more.
Invariant: an execution that names no tool-call id earns nothing by default, and is fined all the same, for leaving ids
out must be worth nothing; a rule with `shaping` pays 0 in all. Rewarder asks the user's function too, if `[air]` names
one. Failure: a function that fails costs the episode what it would have paid, counted with its reason, as is each
payment that does not count; ConfigurationError when it cannot be imported at the start.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from tracegrad.schemas.metrics import AIR_FUNCTION_FAILED, AIR_PAYMENTS_LEFT_OUT, Metrics
from tracegrad.schemas.records.episodes import AIR_RULE, AppliedReward, Episode
from tracegrad.schemas.records.rollouts import is_usable

from .function import FunctionAnswer, PayFunction
from .rules import AirConfig, AirRule, matching
from .signals import Signal, signals_of

_LOGGER = logging.getLogger(__name__)

_MAX_NAME = 100


class Payment(NamedTuple):
    """What one rule paid for one signal."""

    place: int
    """Of the call that it paid."""
    reward: AppliedReward
    signal: Signal | None
    """None: what shaping takes back."""


def apply_air(config: AirConfig, episode: Episode, said: Iterable[tuple[int, AppliedReward]] = ()) -> Episode:
    """The episode as the rules reward it, and as the user's function does (`said`, of `_said_of`)."""
    paid: list[list[AppliedReward]] = [[] for _ in episode.calls]
    by_rules = ((one.place, one.reward) for one in payments(config, episode))
    for place, reward in chain(by_rules, said):
        paid[place].append(reward)
    calls = [
        msgspec.structs.replace(call, rewards=(*earned, *(one for one in call.rewards if not one.is_automatic)))
        for call, earned in zip(episode.calls, paid, strict=True)
    ]
    return msgspec.structs.replace(episode, calls=tuple(calls), air_rules=config.digest)


def payments(config: AirConfig, episode: Episode) -> list[Payment]:
    """What the rules pay, in the order in which they do."""
    rules = config.rules if config.enabled and episode.calls else ()
    signals = list(signals_of(episode)) if rules else []
    due = {rule.name: _due(rule, signals) for rule in rules}
    paid: dict[str, list[float]] = {rule.name: [] for rule in rules}
    found = []
    for number, signal in enumerate(signals):
        for rule in rules:
            amount = rule.amount(signal) if number in due[rule.name] else None
            if amount is None or len(paid[rule.name]) >= rule.cap:
                continue
            if amount < 0 or signal.has_id or config.pays_without_id:
                paid[rule.name].append(amount)
                place = len(episode.calls) - 1 if rule.target == "last" else signal.call
                found.append(Payment(place, AppliedReward(rule=f"{AIR_RULE}{rule.name}", value=amount), signal))
    for rule in rules:
        if rule.shaping and paid[rule.name]:
            taken = AppliedReward(rule=f"{AIR_RULE}{rule.name}", value=-math.fsum(paid[rule.name]))
            found.append(Payment(len(episode.calls) - 1, taken, None))
    return found


def _said_of(
    config: AirConfig, episode: Episode, said: Iterable[tuple[str, str, float | None]]
) -> list[tuple[int, AppliedReward]]:
    """What counts of what a function said (call id, name, value), with the place of the call: usable numbers under
    names, for calls of the episode that their client took, up to the cap."""
    places = {call.call_id: place for place, call in enumerate(episode.calls) if call.outcome.is_taken}
    fit = (
        (places[call], AppliedReward(rule=f"{AIR_RULE}{name[:_MAX_NAME]}", value=value))
        for call, name, value in said
        if call in places and name and value is not None and is_usable(value)
    )
    return list(islice(fit, config.function_cap))


def _due(rule: AirRule, signals: Sequence[Signal]) -> set[int]:
    """The signals that the rule is about, by their place."""
    places = [number for number, signal in enumerate(signals) if rule.is_due(signal)]
    if rule.regex is None:
        return set(places)
    texts = [(number, text) for number in places if (text := signals[number].text) is not None]
    found = matching(rule.regex, [text for _, text in texts])
    return {number for (number, _), is_found in zip(texts, found, strict=True) if is_found}


class Rewarder:
    """What one fold rewards an episode by: the rules, and the user's function."""

    def __init__(self, config: AirConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        is_asked = config.enabled and config.function is not None
        self._function = PayFunction(str(config.function), config.function_limit_s) if is_asked else None

    def __call__(self, episode: Episode) -> Episode:
        """The episode as it is rewarded."""
        answer = self._function(episode) if self._function is not None and episode.calls else FunctionAnswer()
        if answer.problem:
            self._metrics.add(AIR_FUNCTION_FAILED, answer.problem)
            _LOGGER.warning("[air] function pays nothing for %s: %s", episode.episode_id, answer.detail)
        said = _said_of(self._config, episode, answer.pays)
        if num_left_out := len(answer.pays) - len(said):
            self._metrics.add(AIR_PAYMENTS_LEFT_OUT, num=num_left_out)
        return apply_air(self._config, episode, said)
