"""Files that several processes look at: written whole, and locks that go with their holder.

In: a path. Out: the file with the new bytes, or a lock held. Invariants: a reader sees the old bytes or the new ones,
whoever is killed when; a lock is the kernel's, so that it ends with its process, also by SIGKILL. Failure: OSError,
or the caller's own refusal of a lock that is held. What must survive a power cut is `trainer/store/durable`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["hold_lock", "is_held", "moved", "write_atomically"]

_POLL_S = 0.1
_LOOKS_S = 0.3
"""Who merely looks whether a lock is held is in the way of who takes it, for a moment."""


def write_atomically(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Replaces the file as a whole, beside its name first; a private one is nobody else's before a byte is in it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # One that a killed process with our id left keeps the permissions that it was made with.
    scratch.unlink(missing_ok=True)
    with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, 0o600 if is_private else 0o666)) as file:
        file.write(data)
    scratch.replace(path)


def moved(path: Path, beside: Path) -> Path:
    """A path as it was written, or, where nothing is there, what bears its name beside another one now: folders of runs
    that name each other are moved together."""
    here = beside.parent / path.name
    return here if here.exists() and not path.exists() else path


def is_held(path: Path) -> bool:
    """Whether a process holds the lock. To look keeps nobody from it for longer than a system call, and others who look
    not at all."""
    import fcntl  # where the kernel has no such locks, the rest of this file is still of use

    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


@contextmanager
def hold_lock(path: Path, *, refusal: Callable[[str], Exception], wait_s: float = 0.0) -> Iterator[None]:
    """Holds a lock; its file names the holder's process. Blocks for `wait_s`, at least for a moment, then raises
    `refusal(holder)`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lock that were only a file's existence would outlive a killed holder.
    lock = FileLock(path, timeout=max(wait_s, _LOOKS_S), poll_interval=_POLL_S, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise refusal(path.read_text(errors="replace").strip()[:20] or "?") from None
    try:
        path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()
