"""Whether a captured trace has all of its spans, by their parents.

In: its spans, in any order. Out: whether one is missing, and whether its own process will export it yet.
"""

from __future__ import annotations

from tracegrad.schemas.records.facts import SpanFact

from .span_tree import Place, place_of

__all__ = ["Parents"]


class Parents:
    """Of a captured trace, which of its spans' parents are here, and which will come."""

    def __init__(self) -> None:
        self._here: set[Place] = set()
        self._awaited: set[Place] = set()
        self._missing: set[Place] = set()

    def add(self, span: SpanFact) -> None:
        """A span has come."""
        place = place_of(span)
        self._here.add(place)
        self._awaited.discard(place)
        self._missing.discard(place)
        parent = (span.trace_id, span.parent_span_id or "")
        if span.parent_span_id and parent not in self._here:
            if span.parent_is_local:
                self._awaited.add(parent)
            if not span.parent_is_remote:
                self._missing.add(parent)

    @property
    def are_awaited(self) -> bool:
        """Whether a span's own process will export one yet."""
        return bool(self._awaited)

    @property
    def are_whole(self) -> bool:
        """Whether the spans reach up to roots, none of them without its parent, unless another process has that."""
        return bool(self._here) and not self._missing
