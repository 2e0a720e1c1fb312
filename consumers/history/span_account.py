"""What becomes of each span of a history that is assembled anew: its record is done with when an episode closes.

In: the records of facts as assemble reads them, and what it makes of each. Out: how many spans were read, and how many
of them lie in episodes, or do not, and why. Invariant: read = all others; what is left, `unaccounted`, is a fault.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from tracegrad.schemas.fold import Emission
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import CLOSED
from tracegrad.schemas.topics import Topic

_FORWARDED, _AGAIN = "forwarded", "again"
_FATES = {
    "emitted": "in episodes",
    "not_selected": "not selected",
    "unattributed": "of traces without agent, model or tool",
    "late": "late or let go",
    "refused": "in dead letters",
}
"""As ClosedMarker.disposition, and what no marker tells, in words."""


class _Fact(msgspec.Struct, frozen=True, kw_only=True):
    type: str


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Of an event its key and the kinds of its facts, at a tenth of the cost of reading them all."""

    episode_id: str
    facts: list[_Fact] = []


_FACTS = msgspec.msgpack.Decoder(_Facts)


class SpanAccount:
    """Of one pass."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._open: dict[int, tuple[str, int]] = {}
        """Offset -> whose facts, and how many spans among them."""

    def add_record(self, record: Record, *, is_new: bool) -> None:
        """A record of facts that assemble is to read; not new: of a trace that was forwarded."""
        event = _FACTS.decode(record.value or b"")
        num = sum(fact.type == "span" for fact in event.facts)
        self._open[record.offset] = event.episode_id, num
        self._counts["read" if is_new else _AGAIN] += num

    def settle(self, emission: Emission) -> None:
        """What assemble made of it, and of records before it."""
        marker = CLOSED.decode(emission.marker.value) if emission.marker is not None else None
        topics = {output.topic for output in emission.outputs}
        fate = "refused" if Topic.DEAD_LETTERS in topics else _FORWARDED if Topic.EPISODE_EVENTS in topics else "late"
        for position in emission.done:
            key, num = self._open.pop(position.offset, ("", 0))
            if marker is not None:  # behind which another trace may have been let go
                fate = marker.disposition if key in (marker.id, marker.key) else "late"
            self._counts[fate] += num

    @property
    def counts(self) -> dict[str, int]:
        """`read`, each fate, `doubled` (of a trace that was forwarded, those that came twice), and `unaccounted`."""
        fates = {name: self._counts[name] for name in _FATES}
        fates["doubled"] = self._counts[_FORWARDED] - self._counts[_AGAIN]
        return {"read": self._counts["read"], **fates, "unaccounted": self._counts["read"] - sum(fates.values())}

    @property
    def text(self) -> str:
        """One line."""
        counts = self.counts
        parts = [f"{counts[name]} {words}" for name, words in {**_FATES, "doubled": "doubled"}.items() if counts[name]]
        return f"spans: {counts['read']} read = {' + '.join(parts) or 0}; {counts['unaccounted']} unaccounted"
