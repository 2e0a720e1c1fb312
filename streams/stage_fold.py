"""What the folds of all stages have in common: what is open, what is closed, and what becomes of bad input.

In: the markers at assignment, then the input. Out: an Emission for each record. Invariant: an id closes once, so that a
restart emits nothing twice; its marker follows its outputs, and only then are its inputs done. Closed ids are bounded:
beyond `max_closed_ids` the oldest are forgotten; facts of a forgotten id would open it anew, as a stray. Failure: an
input that cannot be used is a dead letter, so that its neighbours go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.log.protocol import Position, Record
from tracegrad.schemas.metrics import CLOSED_IDS_FORGOTTEN, MARKERS_REFUSED, Metrics
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.records.episodes import CLOSED, ClosedMarker
from tracegrad.schemas.topics import Stage, Topic, Topics, closed_key, original_key

from .config import StreamRules

__all__ = ["StageFold", "dead_letter"]

Opened = TypeVar("Opened")


class StageFold(Generic[Opened]):
    """The parts of `Fold` that are alike for all stages; `Opened` is what one keeps of an open id."""

    stage: Stage
    marker_topic: Topic | None = None

    def __init__(self, rules: StreamRules, topics: Topics, metrics: Metrics | None = None) -> None:
        self.metrics = metrics or Metrics()
        self._rules = rules
        self._topics = topics
        self._closed: dict[bytes, None] = {}
        """Packed ids, in the order in which they were closed."""
        self._open: dict[str, Opened] = {}

    @property
    def num_open(self) -> int:
        """Ids that wait for something."""
        return len(self._open)

    def reset(self) -> None:
        """As Fold.reset."""
        self._open.clear()
        self._closed.clear()

    def restore(self, markers: Iterable[Record]) -> None:
        """As Fold.restore; a marker that cannot be read is counted and skipped."""
        for record in markers:
            try:
                self._remember(CLOSED.decode(record.value).id)
            except RecordError as error:
                self.metrics.add(MARKERS_REFUSED, error.reason)

    def fold(self, record: Record) -> Emission:
        """As Fold.fold."""
        try:
            return self._take(record)
        except RecordError as error:
            return Emission(outputs=(dead_letter(record, error, stage=self.stage),), done=(record.position,))

    def propose(self, now_s: float) -> Sequence[Output]:
        """As Fold.propose; nothing is ever due."""
        return ()

    def _take(self, record: Record) -> Emission:
        """Folds a record. Raises RecordError for one that cannot be used."""
        raise NotImplementedError

    def _is_closed(self, id_: str) -> bool:
        return _packed(id_) in self._closed

    def _remember(self, id_: str) -> None:
        """Keeps a closed id; forgets the oldest one when there are too many."""
        self._closed[_packed(id_)] = None
        if len(self._closed) > self._rules.streams.max_closed_ids:
            del self._closed[next(iter(self._closed))]
            self.metrics.add(CLOSED_IDS_FORGOTTEN)

    def _close(self, marker: ClosedMarker, positions: Sequence[Position], outputs: tuple[Output, ...]) -> Emission:
        """Closes an id; `positions` are all of its inputs, of one partition."""
        assert self.marker_topic is not None
        del self._open[marker.id]
        self._remember(marker.id)
        return Emission(
            outputs=outputs,
            marker=Output(
                topic=self.marker_topic,
                key=closed_key(marker.id),
                value=CLOSED.encode(marker),
                partition=positions[0].partition,
            ),
            done=tuple(sorted(set(positions))),
        )


def _packed(id_: str) -> bytes:
    """Half the memory for ids in hex, as ours are; any other text as it is."""
    try:
        return bytes.fromhex(id_) if " " not in id_ else id_.encode()
    except ValueError:
        return id_.encode("utf-8", "surrogatepass")


def dead_letter(
    record: Record, error: RecordError, *, stage: Stage, value: bytes | None = None, item: int | None = None
) -> Output:
    """The dead letter of a record, or of the part of it that `value` holds."""
    return Output(
        topic=Topic.DEAD_LETTERS,
        key=original_key(record),
        value=(record.value or b"") if value is None else value,
        headers=dead_letter_headers(record, stage=stage.value, reason=error.reason, detail=str(error), item=item),
    )
