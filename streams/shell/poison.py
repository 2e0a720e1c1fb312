"""Inputs that end the process again and again: known as poison by the next one, whichever worker it is.

In: a folder that the workers of a run on one machine share, positions whose folding ended a process. Out: small files
in it, and whether a position is poison. Failure: files that cannot be read count as absent.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec

from tracegrad.schemas.files import write_atomically
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.topics import Stage

__all__ = ["PoisonList", "file_name"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def file_name(text: str) -> str:
    """The text with whatever a file name should not hold replaced."""
    return _UNSAFE.sub("_", text)


class PoisonList:
    """Input positions whose folding ended a process, shared by the workers of a stage.

    A fold turns bad input into dead letters by itself. Should one raise all the same, the process ends without
    acknowledging, so that a passing trouble costs nothing; a record that does it `limit` times is passed over as a
    dead letter, so that it does not stop its partition.
    """

    def __init__(self, data_dir: Path, stage: Stage, *, limit: int = 3) -> None:
        self._folder = data_dir / "poison" / stage.value
        self._limit = limit
        self._poison: set[Position] = set()

    def load(self) -> None:
        """Reads what this and other processes have left."""
        self._poison.clear()
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
                crash = msgspec.json.decode(path.read_bytes(), type=_Crash)
                if crash.count >= self._limit:
                    self._poison.add(crash.position)

    def __contains__(self, position: Position) -> bool:
        return position in self._poison

    def add(self, position: Position) -> int:
        """Counts one more end at this position; returns how many there were."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{file_name(position.topic)}-{position.partition}-{position.offset}.json"
        count = 1
        with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            count += msgspec.json.decode(path.read_bytes(), type=_Crash).count
        write_atomically(path, msgspec.json.encode(_Crash(position=position, count=count)))
        return count


class _Crash(msgspec.Struct, frozen=True, kw_only=True):
    """How often a position ended a process."""

    position: Position
    count: int
