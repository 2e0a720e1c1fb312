"""What the workers of a run on one machine must agree on: who holds an instance id, and which inputs are poison.

In: a folder that they share. Out: small files in it. Invariants: one process at a time holds an instance id (two
members with one id would take the partitions from each other for ever); a record that ends the process again and
again is known as poison by the next one. Failure: ConfigurationError when the id is held by another process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.topics import Stage

__all__ = ["PoisonList", "file_name", "hold_instance"]

_LOCK_WAIT_S = 5.0
"""A predecessor that was told to stop may still be leaving."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def file_name(text: str) -> str:
    """The text with whatever a file name should not hold replaced."""
    return _UNSAFE.sub("_", text)


@contextlib.contextmanager
def hold_instance(data_dir: Path, stage: Stage, instance_id: str | None) -> Iterator[None]:
    """Holds an instance id; nothing for a dynamic member. The kernel lets go when the process dies."""
    if instance_id is None:
        yield
        return
    path = data_dir / "locks" / f"streams-{stage.value}-{file_name(instance_id)}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"expected instance id {instance_id!r} of {stage.value} free, got it held by another process "
                        f"({path}); give each worker an id of its own"
                    ) from None
                time.sleep(0.1)
        yield


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
                    self._poison.add(Position(crash.topic, crash.partition, crash.offset))

    def __contains__(self, position: Position) -> bool:
        return position in self._poison

    def add(self, position: Position) -> int:
        """Counts one more end at this position; returns how many there were."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{file_name(position.topic)}-{position.partition}-{position.offset}.json"
        count = 1
        with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            count += msgspec.json.decode(path.read_bytes(), type=_Crash).count
        crash = _Crash(topic=position.topic, partition=position.partition, offset=position.offset, count=count)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.encode(crash))
        temporary.replace(path)
        return count


class _Crash(msgspec.Struct, frozen=True, kw_only=True):
    """How often a position ended a process."""

    topic: str
    partition: int
    offset: int
    count: int
