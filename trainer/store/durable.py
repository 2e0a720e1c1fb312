"""Folders that appear whole or not at all: written beside their name, fsynced, renamed, the rename fsynced.

Used for checkpoints and weight versions. Invariant: a folder under its final name is complete, whatever was killed
when; what a killed writer left behind bears the prefix `.tmp-` and is removed at the next start.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracegrad.schemas.records.weights import WeightFile, digest

PREFIX = ".tmp-"
"""Of what is not whole yet."""


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A temporary folder to fill; it becomes `target` when the block ends without an error, else it is removed.

    An existing target is replaced: only its owner writes it, and nobody was told of it yet.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{PREFIX}{target.name}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in sorted(temporary.rglob("*")):
            _sync(path)
        _sync(temporary)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        _sync(target.parent)
    finally:
        # Half a folder may be all that the disk had left; of a whole one nothing bears this name any more.
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_half_written(folder: Path) -> int:
    """Removes what killed writers left under a folder; how many there were."""
    left = list(folder.glob(f"{PREFIX}*"))
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return len(left)


def describe_files(folder: Path, *known: WeightFile) -> tuple[WeightFile, ...]:
    """Name, size and sha256 of every file below a folder, by name; those that are known are not read."""
    described = {file.name: file for file in known}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if (name := path.relative_to(folder).as_posix()) not in described:
            with path.open("rb") as file:
                described[name] = WeightFile(name=name, bytes=path.stat().st_size, sha256=digest(file))
    return tuple(file for _, file in sorted(described.items()))
