"""The ids that are closed: read from the markers at assignment, so that a restart emits nothing twice.

Bounded: beyond `max_ids` the oldest are forgotten; facts of a forgotten id would open it anew, as a stray.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import CLOSED

from .counters import Counters

__all__ = ["ClosedIds"]


class ClosedIds:
    """A set of ids in the order in which they were closed."""

    def __init__(self, max_ids: int, counters: Counters) -> None:
        self._max_ids = max_ids
        self._counters = counters
        self._ids: dict[bytes, None] = {}

    def __contains__(self, id_: str) -> bool:
        return _packed(id_) in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id_: str) -> None:
        """Remembers an id; forgets the oldest one when there are too many."""
        self._ids[_packed(id_)] = None
        if len(self._ids) > self._max_ids:
            del self._ids[next(iter(self._ids))]
            self._counters.add("closed_ids_forgotten")

    def clear(self) -> None:
        """Forgets all: the markers will be read again."""
        self._ids.clear()

    def restore(self, markers: Iterable[Record]) -> None:
        """Takes marker records; one that cannot be read is counted and skipped."""
        for record in markers:
            try:
                self.add(CLOSED.decode(record.value).id)
            except RecordError as error:
                self._counters.add(f"marker:{error.reason}")


def _packed(id_: str) -> bytes:
    """Half the memory for ids in hex, as ours are; any other text as it is."""
    try:
        return bytes.fromhex(id_) if " " not in id_ else id_.encode()
    except ValueError:
        return id_.encode("utf-8", "surrogatepass")
