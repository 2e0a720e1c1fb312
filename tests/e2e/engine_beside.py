"""The scripted engine as a process beside a run, started again when it dies, as a service manager would.

In: a port. Out: `pid` of the living one. It ends with the block, and with the test.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tests.e2e.live_run import ROOT
from tests.serving import Background, free_port, is_healthy, until
from tracegrad.compose.die_with_parent import guarded

_PAUSE_S = 0.2


class EngineBeside(Background):
    """A thread that keeps one engine alive: the kernel kills a child with the thread that started it."""

    def __init__(self, log: Path, *, delay_s: float = 0.0) -> None:
        """`delay_s`: of each answer."""
        super().__init__(self._keep)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._delay_s = delay_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EngineBeside:
        super().__enter__()
        until(lambda: is_healthy(self.url), 60, what="the scripted engine")
        return self

    def pid(self) -> int | None:
        """Of the living engine."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def _keep(self, stop: threading.Event) -> None:
        command = [sys.executable, "-m", "tests.fake_engine.serve", "--port", str(self.port)]
        command += ["--delay-s", str(self._delay_s)]
        with self._log.open("ab") as log:
            while not stop.wait(_PAUSE_S):
                if self.pid() is None:
                    self._process = subprocess.Popen(guarded(command), cwd=ROOT, stdout=log, stderr=log)
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
