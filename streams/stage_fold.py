"""What the folds of all stages have in common: what is open, what is closed, and what becomes of bad input.

In: the markers at assignment, then the input. Out: an Emission for each record. Invariant: an id closes once, so that a
restart emits nothing twice; its marker follows its outputs, and only then are its inputs done. Closed ids are bounded:
beyond `max_closed_ids` the oldest are forgotten; facts of a forgotten id would open it anew, as a stray. Failure: an
input that cannot be used is a dead letter, so that its neighbours go on. Of inputs that cannot even be decoded the dead
letter is held until the partition brings one that can: a whole row of them, where only our own stages write, is
UnreadableError, with nothing of the row acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from tracegrad.schemas.errors import RecordError, UndecodableError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.keys import closed_key, original_key
from tracegrad.schemas.log.follow import decoded
from tracegrad.schemas.log.protocol import Position, Record, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import CLOSED_IDS_FORGOTTEN, Metrics
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.records.episodes import CLOSED, ClosedMarker
from tracegrad.schemas.topics import Stage, Topic, Topics

from .config import StreamRules

Opened = TypeVar("Opened")
CROWDED = 0.9
"""Share of a bound above which a clock proposes to close what has waited longest; at the bound, what comes is lost."""
REPEAT_S = 30.0
"""A proposal that led to nothing by then was lost with a worker; it is made again."""
_MAX_HELD_BYTES = 64 * 1024 * 1024
"""Of dead letters that are held; those beyond are by reference."""


class StageFold(Generic[Opened]):
    """The parts of `Fold` that are alike for all stages; `Opened` is what one keeps of an open id."""

    stage: Stage
    marker_topic: Topic | None = None

    def __init__(self, rules: StreamRules, topics: Topics, metrics: Metrics | None = None) -> None:
        self.metrics = metrics or Metrics()
        self._rules = rules
        self._topics = topics
        self._closed: dict[bytes, bytes | None] = {}
        """Packed ids, in the order in which they were closed -> whither what comes later goes; None: it is late."""
        self._open: dict[str, Opened] = {}
        self._refusals = Refusals(topics, self.metrics, stops=True)
        self._held: dict[TopicPartition, list[tuple[Position, Output]]] = {}
        """Records in a row that could not be decoded, and their dead letters."""
        self._let_go: list[Position] = []
        """Inputs for which a clock ended; the next record's emission tells that they are done."""

    @property
    def num_open(self) -> int:
        """Ids that wait for something."""
        return len(self._open)

    def reset(self) -> None:
        """As Fold.reset."""
        self._open.clear()
        self._closed.clear()
        self._refusals.reset()
        self._held.clear()
        self._let_go.clear()

    def restore(self, markers: Iterable[Record]) -> None:
        """As Fold.restore; a marker that cannot be read is counted and skipped."""
        if self.marker_topic is None:
            return
        for _, marker in decoded(markers, {self._topics.name(self.marker_topic): CLOSED}, self._refusals):
            self._remember(marker)

    def fold(self, record: Record) -> Emission:
        """As Fold.fold. Raises UnreadableError: stop, and fold the whole row again once it can be read."""
        emission = self._fold(record)
        if self._let_go:
            emission = msgspec.structs.replace(emission, done=tuple(sorted({*emission.done, *self._let_go})))
            self._let_go.clear()
        return emission

    def _fold(self, record: Record) -> Emission:
        where = TopicPartition(record.topic, record.partition)
        try:
            emission = self._take(record)
        except UndecodableError as error:
            if self._refusals.refuse(record, error):
                return self._hold(record, error)
            emission = self._refused(record, error)
        except RecordError as error:
            emission = self._refused(record, error)
        if not self._held or where in self._refusals.rows:
            return emission
        held = self._held.pop(where, ())
        return msgspec.structs.replace(
            emission,
            outputs=(*(letter for _, letter in held), *emission.outputs),
            done=tuple(sorted({*(position for position, _ in held), *emission.done})),
        )

    def _refused(self, record: Record, error: RecordError) -> Emission:
        return Emission(outputs=(dead_letter(record, error, stage=self.stage),), done=(record.position,))

    def _hold(self, record: Record, error: RecordError) -> Emission:
        """Nothing yet: neither the dead letter nor the input is done before the row ends."""
        num_bytes = sum(len(letter.value) for held in self._held.values() for _, letter in held)
        value = b"" if num_bytes + len(record.value or b"") > _MAX_HELD_BYTES else None
        letter = dead_letter(record, error, stage=self.stage, value=value)
        self._held.setdefault(TopicPartition(record.topic, record.partition), []).append((record.position, letter))
        return Emission()

    def propose(self, now_s: float, now_ms: int = 0) -> Sequence[Output]:
        """As Fold.propose; nothing is ever due."""
        return ()

    def _take(self, record: Record) -> Emission:
        """Folds a record. Raises RecordError for one that cannot be used."""
        raise NotImplementedError

    def _is_closed(self, id_: str) -> bool:
        return _packed(id_) in self._closed

    def _forwarded_to(self, id_: str) -> str | None:
        """Whither the facts of a closed id go."""
        to = self._closed.get(_packed(id_))
        return to.hex() if to is not None else None

    def _remember(self, marker: ClosedMarker) -> None:
        """Keeps a closed id; forgets the oldest one when there are too many."""
        self._closed[_packed(marker.id)] = _packed(marker.forwarded_to) if marker.forwarded_to else None
        if len(self._closed) > self._rules.streams.max_closed_ids:
            del self._closed[next(iter(self._closed))]
            self.metrics.add(CLOSED_IDS_FORGOTTEN)

    def _close(self, marker: ClosedMarker, positions: Sequence[Position], outputs: tuple[Output, ...]) -> Emission:
        """Closes an id; `positions` are all of its inputs, of one partition."""
        del self._open[marker.id]
        self._remember(marker)
        return Emission(
            outputs=outputs,
            marker=self._told(marker, positions[0].partition),
            done=tuple(sorted(set(positions))),
        )

    def _told(self, marker: ClosedMarker, partition: int) -> Output:
        """The record of a marker, in the partition of what it closes."""
        assert self.marker_topic is not None
        return Output(
            topic=self.marker_topic, key=closed_key(marker.id), value=CLOSED.encode(marker), partition=partition
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
