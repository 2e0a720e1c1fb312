"""Files that are written whole, and locks that go with their holder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tracegrad.compose.files import hold_lock, is_held, write_atomically

HOLDER = """
import sys, time
from pathlib import Path
from tracegrad.compose.files import hold_lock
with hold_lock(Path(sys.argv[1]), refusal=RuntimeError):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """The name is given to the whole; nothing is left beside it."""
    path = tmp_path / "a.json"
    write_atomically(path, b"old")
    before = path.open("rb")
    write_atomically(path, b"new bytes")
    with before:
        assert (before.read(), path.read_bytes()) == (b"old", b"new bytes")
    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]


def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Also where one that anybody may read stood before, and whatever the umask is."""
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        for is_private, mode in ((False, 0o666), (True, 0o600)):
            write_atomically(path, b"x", is_private=is_private)
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)


def test_a_lock_has_one_holder_whom_the_refusal_names(tmp_path: Path) -> None:
    """Another name is another lock; it is free again after the block."""
    path = tmp_path / "locks" / "a.lock"
    with (
        hold_lock(path, refusal=ValueError),
        hold_lock(tmp_path / "b.lock", refusal=ValueError),
        pytest.raises(ValueError, match=str(os.getpid())),
        hold_lock(path, refusal=ValueError, wait_s=0.01),
    ):
        pass
    with hold_lock(path, refusal=ValueError):
        pass


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """The kernel lets go, also on SIGKILL; who waited gets the lock."""
    path = tmp_path / "a.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=str(holder.pid)), hold_lock(path, refusal=ValueError):
            pass
        holder.kill()
        began = time.monotonic()
        with hold_lock(path, refusal=ValueError, wait_s=10.0):
            assert time.monotonic() - began < 5


def test_who_looks_whether_a_lock_is_held_keeps_nobody_from_it(tmp_path: Path) -> None:
    """Nor says of another who looks that it holds it; who holds it is seen."""
    path = tmp_path / "a.lock"
    assert not is_held(path) and not path.exists()
    with hold_lock(path, refusal=ValueError):
        assert is_held(path)
    stop, seen = threading.Event(), list[bool]()

    def look() -> None:
        while not stop.is_set():
            seen.append(is_held(path))
            time.sleep(0.02)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        time.sleep(0.3)
        assert seen and not any(seen), "they looked only"
        for _ in range(20):
            with hold_lock(path, refusal=ValueError):
                pass
    finally:
        stop.set()
        for looker in lookers:
            looker.join()
