"""Inputs that end the process again and again: known as poison by the next one, whichever worker it is.

    poison-assemble.jsonl    a line for each end: ["topic",1,42]
    life-assemble-0          this worker's life: what it folds now, or that it lives; blank when it ended in order

In: a folder that the workers of a run on one machine share, positions whose folding ended a process, by an exception or
by a signal that left no word: out of memory, a fault in a native library, a loop that hangs. Out: the two files, and
whether a position is poison. Invariant: who follows a life that ended without a word marks each record before it folds
it, so that the next such end names one; what was never killed pays nothing. Failure: what cannot be read counts as
absent, a mark that cannot be written is none.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.topics import Stage

logger = logging.getLogger(__name__)
_LIFE_BYTES = 512
"""Of its file, which is written in place, so that no full disk holds it back."""
_ALIVE, _ENDED = b"alive", b""


class PoisonList:
    """Input positions whose folding ended a process, shared by the workers of a stage.

    A fold turns bad input into dead letters by itself. Should one raise all the same, the process ends without
    acknowledging, so that a passing trouble costs nothing; a record that does it `limit` times is passed over as a
    dead letter, so that it does not stop its partition.

    Args:
        worker: which no two are at the same time; None: ends by a signal are not seen.
    """

    def __init__(self, data_dir: Path, stage: Stage, *, worker: str | None = None, limit: int = 3) -> None:
        self._path = data_dir / f"poison-{stage.value}.jsonl"
        self._limit = limit
        self._ends: Counter[Position] = Counter()
        self._life = None if worker is None else os.open(data_dir / f"life-{worker}", os.O_RDWR | os.O_CREAT, 0o600)
        before = os.pread(self._life, _LIFE_BYTES, 0).rstrip() if self._life is not None else _ENDED
        self._is_watched = before != _ENDED
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            position = msgspec.json.decode(before, type=Position)
            logger.error("the worker before died while it folded %s, time %d", position, self.add_end(position))
        self._write(_ALIVE)

    def _write(self, life: bytes) -> None:
        if self._life is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._life, life.ljust(_LIFE_BYTES), 0)

    @contextlib.contextmanager
    def folding(self, position: Position) -> Iterator[None]:
        """Around the folding of one record; an exception leaves a word, so it is for who sees it to count."""
        if self._is_watched:
            self._write(msgspec.json.encode(position))
        try:
            yield
        finally:
            if self._is_watched:
                self._write(_ALIVE)

    def close(self) -> None:
        """The process ends with a word, be it an exception's."""
        self._write(_ENDED)

    def load(self) -> None:
        """Reads what this and other processes have left."""
        self._ends.clear()
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
                self._ends[msgspec.json.decode(line, type=Position)] += 1

    def __contains__(self, position: Position) -> bool:
        return self._ends.get(position, 0) >= self._limit

    def add_end(self, position: Position) -> int:
        """Counts one more end at this position; returns how many there were."""
        # One write to a file opened for appending: what other processes write meanwhile is not torn. It begins a line
        # of its own, behind whatever a power loss left.
        with self._path.open("ab", buffering=0) as file:
            file.write(b"\n" + msgspec.json.encode(position) + b"\n")
        self.load()
        return self._ends[position]
