"""Faults that last: frozen processes, a broker that is away, a full disk.

In: a LiveRun and its Returns. Out: the fault, for so many seconds; then Returns looks for everyone's next work. What
is started anew during a fault is left alone, but for the broker, which stays away. A full disk needs a file system of
the test's own, which only root may mount.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.e2e.live_run import LiveRun
from tests.e2e.returns import Returns
from tests.serving import until

_DISK_BYTES = 8 << 30


@contextlib.contextmanager
def frozen(
    run: LiveRun, returns: Returns, names: Sequence[str], what: str, say: Callable[[str], None]
) -> Iterator[None]:
    """SIGSTOP to all of them at once; after the block SIGCONT to those that are still there."""
    pids = {name: pid for name in names if (pid := until(partial(run.pid_of, name), 60, what=f"process {name}"))}
    say(f"{'':9} {what}: {', '.join(names)}")
    try:
        for pid in pids.values():
            _send(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids.values():
            _send(pid, signal.SIGCONT)
    for name, pid in pids.items():
        returns.ended(name, what, pid)


def keep_broker_away(run: LiveRun, for_s: float) -> None:
    """SIGKILLs the broker; each that is started in its place stands still before it listens, and dies at the end."""
    first = until(partial(run.pid_of, "kafka"), 60, what="the broker")
    assert first is not None
    _send(first, signal.SIGKILL)
    stopped: set[int] = set()
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        pid = run.pid_of("kafka")
        if pid is not None and pid != first and pid not in stopped:
            _send(pid, signal.SIGSTOP)
            stopped.add(pid)
        let_pass(run, 0.05)
    for pid in stopped:
        _send(pid, signal.SIGKILL)


class SmallDisk:
    """A file system in memory at a folder, which can be full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, folder: Path) -> Iterator[SmallDisk | None]:
        """At a folder that is empty; None where nothing may be mounted."""
        folder.mkdir()
        options = f"size={_DISK_BYTES},mode=700"
        mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
            yield None
            return
        try:
            yield cls(folder)
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """No byte more than what lies there now can be written meanwhile."""
        until(self._fill, 10, what="a full disk")
        try:
            yield
        finally:
            assert self._resize(_DISK_BYTES), "expected room on the disk again"

    def _fill(self) -> bool:
        """Whether it is full now: what was written since the look makes the size one that cannot be."""
        usage = os.statvfs(self.folder)
        return self._resize((usage.f_blocks - usage.f_bfree) * usage.f_frsize)

    def _resize(self, num_bytes: int) -> bool:
        command = ["mount", "-o", f"remount,size={num_bytes}", str(self.folder)]
        return subprocess.run(command, capture_output=True).returncode == 0


def let_pass(run: LiveRun, seconds: float) -> None:
    """Lets time pass; AssertionError when the run ends meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        assert run.poll() is None, f"the run ended with {run.poll()}:\n{run.tail()}"
        time.sleep(min(left, 0.2))


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
