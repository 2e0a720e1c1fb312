"""Files that several processes look at: written whole, small records and a run's key among them, and locks.

In: a path. Out: the file with the new bytes, a record, or a lock held. Invariants: a reader sees the old bytes or the
new ones, whoever is killed when; a lock is the kernel's, so that it ends with its process, also by SIGKILL. Failure:
OSError; ConfigurationError with the remedy, where a record is not there or is damaged; the caller's own refusal of a
lock that is held. What must survive a power cut is `trainer/store/durable`'s.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock, Timeout

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash

T = TypeVar("T")
MARK = "run.json"
"""By which a run's folder is known."""
KEY = "key.json"
_KEY_BYTES = 32
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


class RunKey(msgspec.Struct, frozen=True, kw_only=True):
    """The secret of a run: who has it may write in the run's name. Programs of the run are told it, agents never."""

    schema: str = "run-key/1"
    run: RunHash
    """Whose key it is; a copy of the file, given to another run, says so by itself."""
    key: bytes
    """32 random bytes, in base64."""

    @classmethod
    def draw(cls, run: RunHash) -> RunKey:
        """A new one."""
        return cls(run=run, key=secrets.token_bytes(_KEY_BYTES))

    def __repr__(self) -> str:
        return f"RunKey({self.run})"


def read_key(path: Path) -> RunKey:
    """The key of the run in a folder, or in a copy of its key.json. Raises ConfigurationError when there is none."""
    file = path / KEY if path.is_dir() else path
    found = read_record(file, RunKey)
    if len(found.key) != _KEY_BYTES:
        raise ConfigurationError(
            f"{file}: expected a key of {_KEY_BYTES} bytes, got {len(found.key)}; put the run's own file back"
        )
    return found


def write_record(path: Path, record: msgspec.Struct, *, is_private: bool = False) -> None:
    """As JSON for people, replaced whole."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n", is_private=is_private)


def read_record(path: Path, kind: type[T], today: Callable[[Any], Any] = lambda given: given) -> T:
    """The record in a file, of which `today` makes what this release knows of it. Raises ConfigurationError."""
    try:
        return msgspec.convert(today(msgspec.json.decode(path.read_bytes())), kind)
    except FileNotFoundError:
        remedy = "start the run with `tracegrad up` or `tracegrad train FILE`, or name its folder"
        if path.name == KEY and (path.parent / MARK).exists():
            remedy = "without it no record of the run can be verified: put it back from a copy"
        raise ConfigurationError(f"no {path.name} in {path.parent}; {remedy}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}; was it written by another release?") from error
