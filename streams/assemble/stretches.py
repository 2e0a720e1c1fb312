"""Conversations of captured agents that go on after an episode of theirs has closed: each stretch is an episode.

In: the marker of each closed episode, with the places of its calls on `llm_calls` and the traces that came to it; facts
of a key of which an episode has closed. Out: the id of the episode that they are of, or None: they are late.
Invariant: a call makes the next episode only if it lies behind all calls of its own key that earlier episodes of its
conversation held, so that a redelivered one never does; the id follows from the key and the episode's first call. What
comes from a new trace, or tells of a call in flight, before that call does waits for it under an id of its own.
Bounded: of a conversation that is forgotten everything is late.
"""

from __future__ import annotations

from collections import OrderedDict

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.ids import stretch_id, waiting_id
from tracegrad.schemas.records.episodes import ClosedMarker
from tracegrad.schemas.records.facts import CallFact, CallOpenFact, ContextCallFact, Facts

_MAX_KEYS = 2_000
"""Of the calls of one conversation; what is delivered again is so shortly after, and names the last ones."""
_Orders = BoundedMap[str, dict[int, int]]
"""Key of calls, the conversation's own or a trace's that was forwarded to it -> partition of `llm_calls` -> the last
place there of a call that an episode held; nothing of a trace that brought none."""


class Stretches:
    """The conversations of one worker of which an episode has closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, _Orders] = OrderedDict()
        self._num_keys = 0
        self._open: dict[str, str] = {}
        """Key -> the episode that goes on with it."""
        self._moved: BoundedMap[str, None] = BoundedMap(most)
        """Traces that were forwarded with calls of their own."""

    def clear(self) -> None:
        """Forgets all."""
        self._known.clear()
        self._num_keys = 0
        self._open.clear()
        self._moved.clear()

    def move(self, trace: str) -> None:
        """A trace was forwarded, and calls of its own with it or after it."""
        self._moved[trace] = None

    def has_moved(self, trace: str) -> bool:
        """Whether it is a trace for certain, and no conversation whose key a stranger gave to one."""
        return trace in self._moved

    def closed(self, marker: ClosedMarker) -> None:
        """An episode of a conversation has closed."""
        key = marker.key or marker.id
        orders = self._orders(key)
        self._num_keys -= len(orders)
        places = ((key, partition, order) for partition, order in marker.last_orders)
        for trace, partition, order in (*places, *marker.traces):
            known = orders.renew(trace, {})
            if order >= 0:
                known[partition] = max(order, known.get(partition, -1))
        self._num_keys += len(orders)
        self._open.pop(key, None)
        while len(self._known) > 1 and len(self._known) + self._num_keys > self._most:
            oldest, forgotten = self._known.popitem(last=False)
            self._num_keys -= len(forgotten)
            self._open.pop(oldest, None)

    def _orders(self, key: str) -> _Orders:
        orders = self._known.setdefault(key, BoundedMap(_MAX_KEYS))
        self._known.move_to_end(key)
        return orders

    def is_known(self, key: str) -> bool:
        """Whether an episode of the conversation has closed."""
        return key in self._known

    def is_open(self, key: str) -> bool:
        """Whether an episode goes on with the conversation."""
        return key in self._open

    def episode(self, facts: Facts, *, is_moved: bool = False) -> str | None:
        """Of facts whose key has a closed episode, the id of the one that they are of; None: late. `is_moved`: a trace
        of that name was forwarded, and these stay."""
        key = facts.episode_id
        orders = self._orders(key) if is_moved else self._known.get(key)
        told = [fact for fact in facts.facts if isinstance(fact, CallFact | ContextCallFact | CallOpenFact)]
        if orders is None or any(_is_within(fact, orders) for fact in told):
            return None
        if first := next((fact.call for fact in told if not isinstance(fact, CallOpenFact)), None):
            self._open.setdefault(key, stretch_id(key, first.call_id))
        if key in self._open:
            return self._open[key]
        is_new = facts.forwarded_from is not None and facts.forwarded_from not in orders
        return waiting_id(key) if is_new or told else None


def _is_within(fact: CallFact | ContextCallFact | CallOpenFact, orders: _Orders) -> bool:
    """Whether it lies before the end of an episode, which held it, or would have."""
    key = fact.open.key if isinstance(fact, CallOpenFact) else fact.call.key
    return fact.order <= orders.get(key, {}).get(fact.partition, -1)
