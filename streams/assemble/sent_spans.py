"""The spans of one open episode, and what log events tell of them, by whose credential they came with.

In: span and log facts, in any order and any number of times. Out: of the senders that are asked for, the spans with
what their events tell. Invariant: spans conflict with those of the same sender only, so that what others send in an
agent's name displaces nothing; of two that claim the same place the one with the greatest (end time, sha256) wins.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from tracegrad.schemas.records.facts import LogFact, SpanFact

from .join.log_readings import LogReading, filled
from .join.span_tree import SpanKey, span_key

S = TypeVar("S", bound=msgspec.Struct)
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class SentSpans:
    """Those of one episode. Not thread-safe."""

    def __init__(self) -> None:
        self._spans: defaultdict[str, dict[SpanKey, SpanFact]] = defaultdict(dict)
        """By `SpanFact.proved_by`: whose it has to be is told by the end."""
        self._logs: defaultdict[str, dict[SpanKey, LogReading]] = defaultdict(dict)
        """Likewise, what log events tell of spans, those to come among them."""
        self._counted: defaultdict[str, set[SpanKey]] = defaultdict(set)
        """Likewise, those that their agent host counted."""

    @property
    def senders(self) -> frozenset[str]:
        """Of spans."""
        return frozenset(self._spans)

    @property
    def num_spans(self) -> int:
        """Of all senders."""
        return sum(map(len, self._spans.values()))

    def num_of(self, sender: str) -> int:
        """Spans of one sender, and those that its events tell of."""
        return len(self._spans.get(sender, ())) + len(self._logs.get(sender, ()))

    def num_here(self, senders: Iterable[str], *, is_marked: bool) -> int:
        """Of these senders, those that count for what an agent host exported; `is_marked`: it marks what it counts."""
        here = self._counted if is_marked else self._spans
        return sum(len(here[sender]) for sender in senders if sender in here)

    def add_span(self, fact: SpanFact) -> None:
        """Folds a span in."""
        place, spans = span_key(fact), self._spans[fact.proved_by]
        spans[place] = later(spans.get(place), fact, lambda span: span.end_ns)
        if fact.is_counted:
            # Kept apart from the fact: the same span may also come unmarked, as from a forked child.
            self._counted[fact.proved_by].add(place)

    def add_event(self, fact: LogFact) -> None:
        """Folds an event in."""
        place, told = (fact.trace_id, fact.span_id), self._logs[fact.proved_by]
        told[place] = told.get(place, LogReading()).with_(fact)

    def filled(self, senders: Iterable[str]) -> Iterable[SpanFact]:
        """One of each place, with what the same sender's events tell of it; of several senders' the last one's."""
        places: dict[SpanKey, SpanFact] = {}
        for sender in senders:
            told = self._logs.get(sender, {})
            for place, span in self._spans[sender].items():
                places[place] = filled(span, told[place]) if place in told else span
        return places.values()

    def facts(self) -> Iterator[SpanFact | LogFact]:
        """All, in canonical order, for whoever folds them anew."""
        for _, spans in sorted(self._spans.items()):
            yield from (spans[place] for place in sorted(spans))
        for sender, places in sorted(self._logs.items()):
            for place, said in sorted(places.items()):
                yield from said.facts(place, sender)


def later(old: S | None, new: S, end: Callable[[S], int]) -> S:
    """The winner of two facts that claim the same place."""
    if old is None or old == new:
        return new
    return max(old, new, key=lambda fact: (end(fact), hashlib.sha256(_ENCODER.encode(fact)).digest()))
