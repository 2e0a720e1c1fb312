"""A small stage with state, for tests of the shell: it sums the numbers of an id and closes at the announced count.

Input values are JSON `{"id", "part", "of", "value"}`; parts may repeat and come in any order. Output: one record per
id with all its parts; marker: the id. Folds by id, so that it shows what a lost or half-folded input would change.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.log.protocol import Position, Record
from tracegrad.schemas.records.episodes import CLOSED, ClosedMarker
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.stage_fold import dead_letter


class Part(msgspec.Struct, frozen=True):
    """One of `of` parts of an id."""

    id: str
    part: int
    of: int
    value: int


class Sum(msgspec.Struct, frozen=True):
    """What closes an id."""

    id: str
    parts: list[tuple[int, int]]


_PARTS = msgspec.json.Decoder(Part)


class CountingFold:
    """The fold; `crash_on` raises at that value, as a fault of a fold would; `work_s` makes each step slow."""

    stage = Stage.ASSEMBLE
    marker_topic: Topic | None = Topic.CLOSED_EPISODES

    def __init__(self, *, crash_on: int | None = None, work_s: float = 0.0) -> None:
        self._crash_on = crash_on
        self._work_s = work_s
        self._open: dict[str, tuple[dict[int, int], list[Position]]] = {}
        self._closed: set[str] = set()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def reset(self) -> None:
        self._open.clear()
        self._closed.clear()

    def restore(self, markers: Iterable[Record]) -> None:
        self._closed.update(CLOSED.decode(marker.value).id for marker in markers)

    def fold(self, record: Record) -> Emission:
        if self._work_s:
            time.sleep(self._work_s)
        try:
            part = _PARTS.decode(record.value or b"")
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            letter = dead_letter(record, RecordError(str(error)), stage=Stage.ASSEMBLE)
            return Emission(outputs=(letter,), done=(record.position,))
        if part.value == self._crash_on:
            raise ZeroDivisionError(f"a fault of the fold at {part.value}")
        if part.id in self._closed:
            return Emission(done=(record.position,))
        values, positions = self._open.setdefault(part.id, ({}, []))
        values[part.part] = part.value
        positions.append(record.position)
        if len(values) < part.of:
            return Emission()
        del self._open[part.id]
        self._closed.add(part.id)
        body = msgspec.json.encode(Sum(id=part.id, parts=sorted(values.items())))
        marker = CLOSED.encode(ClosedMarker(id=part.id, disposition="emitted"))
        return Emission(
            outputs=(Output(topic=Topic.EPISODES, key=part.id.encode(), value=body),),
            marker=Output(topic=Topic.CLOSED_EPISODES, key=part.id.encode(), value=marker, partition=record.partition),
            done=tuple(positions),
        )

    def propose(self, now_s: float, now_ms: int = 0) -> Sequence[Output]:
        return ()
