"""Shell scripts as supervised processes, and what is waited for meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import psutil

from tracegrad.compose.run.process import ProcessSpec
from tracegrad.compose.run.supervisor import Backoff

FOREVER = "while :; do sleep 0.02; done"
QUICK = Backoff(first_s=0.01, greatest_s=0.02, max_in_a_row=3)


def shell(name: str, script: str, *, layer: int = 0, is_job: bool = False, stop_s: float = 5.0) -> ProcessSpec:
    """A child that runs a script."""
    return ProcessSpec(name=name, argv=("/bin/sh", "-c", script), layer=layer, is_job=is_job, stop_timeout_s=stop_s)


@contextlib.contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Runs an action in another thread; what it raises interrupts this one, and fails the test."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(10)
    assert not raised, raised


def gone(pid: int) -> bool:
    """Whether no such process lives (a zombie does not)."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
