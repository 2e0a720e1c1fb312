"""Conversations of captured agents that go on after an episode of theirs has closed: each stretch is an episode.

In: each closed episode's key and the places of its calls on `llm_calls`; facts of a key of which an episode has closed.
Out: the id of the episode that they are of, or None: they are late. Invariant: a call makes the next episode only if it
lies behind all that earlier episodes of its conversation held, so that a redelivered one never does; the id follows
from the key and the episode's first call. Bounded: of a conversation that is forgotten everything is late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from tracegrad.schemas.ids import stretch_id
from tracegrad.schemas.records.facts import CallFact, Facts

__all__ = ["Stretches"]


class Stretches:
    """The conversations of one worker of which an episode has closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._orders: OrderedDict[str, dict[int, int]] = OrderedDict()
        """Key -> partition of `llm_calls` -> the last place of a call that an episode held."""
        self._open: dict[str, str] = {}
        """Key -> the episode that goes on with it."""

    def clear(self) -> None:
        """Forgets all."""
        self._orders.clear()
        self._open.clear()

    def closed(self, key: str, orders: Iterable[tuple[int, int]]) -> None:
        """An episode of the conversation has closed; `orders` as its marker tells them."""
        known = self._orders.setdefault(key, {})
        self._orders.move_to_end(key)
        for partition, order in orders:
            known[partition] = max(order, known.get(partition, -1))
        self._open.pop(key, None)
        while len(self._orders) > self._most:
            self._open.pop(self._orders.popitem(last=False)[0], None)

    def is_open(self, key: str) -> bool:
        """Whether an episode goes on with the conversation."""
        return key in self._open

    def episode(self, facts: Facts, *, is_moved: bool = False) -> str | None:
        """Of facts whose key has a closed episode, the id of the one that they are of; None: late. `is_moved`: the key
        was forwarded, and these stay."""
        calls = [fact for fact in facts.facts if isinstance(fact, CallFact)]
        if calls and is_moved and facts.episode_id not in self._orders:
            self.closed(facts.episode_id, ())
        orders = self._orders.get(facts.episode_id)
        if orders is None or any(fact.order <= orders.get(fact.partition, -1) for fact in calls):
            return None
        if calls and facts.episode_id not in self._open:
            self._open[facts.episode_id] = stretch_id(facts.episode_id, calls[0].call.call_id)
        return self._open.get(facts.episode_id)
