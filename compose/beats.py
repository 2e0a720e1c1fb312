"""The file by which a process shows its supervisor that its work loop still turns, and what it has done.

    runs/NAME/beats/trainer     {"num_turns":41,"within_s":45.0,"work":7,"doing":""}

In: the Beats of the process (schemas/beat.py), what its counters say is done; on the other side a path. Out: one small
file, written in place about once a second, so that a full disk or a broker that is away holds back none; a BeatRecord.
Invariant: its number grows with each beat, so that who reads it twice needs no clock of the other side. Failure: what
cannot be written or read is no beat.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tracegrad.schemas.beat import START_S, Beat, kept

_EVERY_S = 1.0
_BYTES = 256
"""Of the file: one page, so that a reader meets the old bytes or the new ones."""
_MAX_DOING = 60


class BeatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says."""

    num_beats: int = 0
    """Written so far: two that differ are two signs of life."""
    num_turns: int = 0
    """Of the work loop; 0: it was not reached yet."""
    within_s: float = START_S
    """The next beat comes within this."""
    work: int = 0
    """Units of work done since the process started."""
    doing: str = "starting"


@contextlib.contextmanager
def beating(path: Path, work: Callable[[], int], *, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Writes the beats of the calling thread to the file, with what `work` says is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    last, at = BeatRecord(), -_EVERY_S

    def keep(beat: Beat) -> None:
        nonlocal last, at
        now, done = clock(), work()
        is_old = now - at >= _EVERY_S or abs(beat.within_s - last.within_s) >= _EVERY_S
        if not (is_old or (done and not last.work) or (beat.num_turns and not last.num_turns)):
            return
        last = BeatRecord(
            num_beats=last.num_beats + 1,
            num_turns=beat.num_turns,
            within_s=beat.within_s,
            work=done,
            doing=beat.doing[:_MAX_DOING],
        )
        at = now
        with contextlib.suppress(OSError):
            os.pwrite(file, msgspec.json.encode(last).ljust(_BYTES), 0)

    try:
        with kept(keep, clock=clock):
            yield
    finally:
        os.close(file)


def read_beat(path: Path) -> BeatRecord | None:
    """What the file says now; None: nothing yet, or nothing that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BeatRecord)
    except (OSError, msgspec.DecodeError):
        return None
