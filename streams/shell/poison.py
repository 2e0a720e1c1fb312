"""Inputs that end the process again and again: known as poison by the next one, whichever worker it is.

In: a folder that the workers of a run on one machine share, positions whose folding ended a process. Out: one file of
a stage in it, a line for each such end, and whether a position is poison. Failure: lines that cannot be read count as
absent.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import msgspec

from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.topics import Stage

__all__ = ["PoisonList"]


class PoisonList:
    """Input positions whose folding ended a process, shared by the workers of a stage.

    A fold turns bad input into dead letters by itself. Should one raise all the same, the process ends without
    acknowledging, so that a passing trouble costs nothing; a record that does it `limit` times is passed over as a
    dead letter, so that it does not stop its partition.
    """

    def __init__(self, data_dir: Path, stage: Stage, *, limit: int = 3) -> None:
        self._path = data_dir / f"poison-{stage.value}.jsonl"
        self._limit = limit
        self._ends: Counter[Position] = Counter()

    def load(self) -> None:
        """Reads what this and other processes have left."""
        self._ends.clear()
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
                self._ends[msgspec.json.decode(line, type=Position)] += 1

    def __contains__(self, position: Position) -> bool:
        return self._ends.get(position, 0) >= self._limit

    def add(self, position: Position) -> int:
        """Counts one more end at this position; returns how many there were."""
        # One write to a file opened for appending: what other processes write meanwhile is not torn. It begins a line
        # of its own, behind whatever a power loss left.
        with self._path.open("ab", buffering=0) as file:
            file.write(b"\n" + msgspec.json.encode(position) + b"\n")
        self.load()
        return self._ends[position]
