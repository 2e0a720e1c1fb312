"""What becomes of each span of a history that is assembled anew: its record is done with when an episode closes.

In: the records of facts as assemble reads them, and what it makes of each. Out: how many spans were read, and how many
of them lie in episodes, or do not, and why. Invariant: read is the sum of all others; one that is `unaccounted` is a
fault.
"""

from __future__ import annotations

from collections import Counter

from tracegrad.schemas.fold import Emission
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import CLOSED
from tracegrad.schemas.records.facts import EPISODE_EVENTS, SpanFact
from tracegrad.schemas.topics import Topic

_FATES = {
    "emitted": "in episodes",
    "not_selected": "not selected",
    "unattributed": "of traces without call, agent or tool",
    "late": "late or let go",
    "refused": "in dead letters",
    "forwarded": "doubled",
}
"""As ClosedMarker.disposition, and what no marker tells, in words."""


class SpanAccount:
    """Of one pass."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._open: dict[int, tuple[str, int]] = {}
        """Offset -> whose facts, and how many spans among them."""

    def add_record(self, record: Record, *, is_new: bool) -> None:
        """A record that assemble is to read; not new: its facts are of a trace that was forwarded."""
        event = EPISODE_EVENTS.decode(record.value)
        num = sum(isinstance(fact, SpanFact) for fact in getattr(event, "facts", ()))
        self._open[record.offset] = event.episode_id, num
        # What goes on is counted where it comes to; what was forwarded twice comes there once.
        self._counts["read" if is_new else "forwarded"] += num if is_new else -num

    def settle(self, emission: Emission) -> None:
        """What assemble made of it, and of records before it."""
        marker = CLOSED.decode(emission.marker.value) if emission.marker is not None else None
        topics = {output.topic for output in emission.outputs}
        fate = "refused" if Topic.DEAD_LETTERS in topics else "forwarded" if Topic.EPISODE_EVENTS in topics else "late"
        for position in emission.done:
            key, num = self._open.pop(position.offset, ("", 0))
            if marker is not None:  # behind which another trace may have been let go
                fate = marker.disposition if key in (marker.id, marker.key) else "late"
            self._counts[fate] += num

    def report(self) -> tuple[dict[str, int], str]:
        """For machines, and for people."""
        left, fates = sum(num for _, num in self._open.values()), {name: self._counts[name] for name in _FATES}
        told = " + ".join(f"{num} {_FATES[name]}" for name, num in fates.items() if num) or "0"
        read = self._counts["read"]
        return {"read": read, **fates, "unaccounted": left}, f"spans: {read} read = {told}; {left} unaccounted"
