"""Kills processes while the test sees work in flight in them.

A process is looked at until there is work, frozen (SIGSTOP), looked at again, and only then SIGKILLed; without work
it goes on (SIGCONT). When no look catches any, it is held for a while: what is asked of it meanwhile is in flight
in it when it dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

import msgspec

from tests.e2e.evidence import Look
from tests.e2e.live_run import LiveRun
from tests.e2e.returns import Returns
from tests.serving import is_alive, until

HELD_S = 5.0
"""How long a process is held at most: below every session time-out, so that the broker does not miss it."""
FREE_S = 3.0
"""How long all run between two holds; longer after each hold that caught nothing, for a held worker may have lost its
partitions and a busy machine takes its time to give them back."""
_FREE_MORE = 1.5
_MAX_FREE_S = 20.0
_GENTLY_S = 1.5
"""The same for one that is to go on well: a broker's own session is 2 s."""
_SERVICES = ("otlp", "llm", "engine", "weight-sync", "streams-normalize", "streams-assemble", "streams-credit")
_HOLD_S = {**dict.fromkeys(_SERVICES, HELD_S), "kafka": _GENTLY_S}
"""Their work comes from others, so it also comes while they are held."""


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """One SIGKILL, and what the test saw in flight."""

    name: str
    at_s: float
    in_flight: str


class Killer:
    """Kills by name, keeps the record."""

    def __init__(
        self, run: LiveRun, looks: dict[str, Look], say: Callable[[str], None], returns: Returns | None = None
    ) -> None:
        """`returns`: told of each kill, and lets it look meanwhile."""
        self.killed: list[Killed] = []
        self._run = run
        self._looks = looks
        self._say = say
        self._returns = returns
        self._began = time.monotonic()

    def strike(self, *names: str, timeout_s: float = 240.0) -> None:
        """SIGKILLs each of the processes once work is in flight in it, whichever is seen first.

        AssertionError when none was seen in one of them in time, or the run ended before.
        """
        left = list(names)
        deadline = time.monotonic() + timeout_s
        held_at, free_s = time.monotonic(), FREE_S
        while left:
            status = self._run.poll()
            assert status is None, f"the run ended with {status} before {left} were killed:\n{self._run.tail()}"
            assert time.monotonic() < deadline, (
                f"no work in flight was seen in {left} within {timeout_s:g} s:\n{self._run.standing()}"
            )
            struck = [name for name in left if self._looks[name]() and self._try(name, 0.0)]
            if not struck and time.monotonic() - held_at > free_s:
                holdable = [name for name in left if _hold_s(name)]
                struck = [name for name in holdable[:1] if self._try(name, _hold_s(name))]
                # The next one's turn, should this one have had nothing to do.
                left = left if struck or not holdable else [n for n in left if n != holdable[0]] + [holdable[0]]
                held_at, free_s = time.monotonic(), FREE_S if struck else min(free_s * _FREE_MORE, _MAX_FREE_S)
            left = [name for name in left if name not in struck]
            if self._returns is not None:
                self._returns.look()
            if not struck:
                time.sleep(0.002 if left[0] == "trainer:half-written" else 0.03)

    def _try(self, name: str, hold_s: float) -> bool:
        """Whether the process is dead now, with work in flight."""
        pid = self._run.pid_of(name.partition(":")[0])
        if pid is None:
            return False
        look = self._looks[name]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            deadline = time.monotonic() + hold_s
            while not (what := look()) and time.monotonic() < deadline:
                time.sleep(0.05)
            if what and is_alive(pid):
                os.kill(pid, signal.SIGKILL)
                until(lambda: not is_alive(pid), 10, what=f"the end of process {pid}")
                killed = Killed(name=name, at_s=time.monotonic() - self._began, in_flight=what)
                self.killed.append(killed)
                if self._returns is not None:
                    self._returns.killed(name.partition(":")[0], pid)
                self._say(f"{killed.at_s:6.1f} s  SIGKILL {name}: {what}")
                return True
            os.kill(pid, signal.SIGCONT)
        return False

    def let_go(self, name: str, process: subprocess.Popen[bytes], timeout_s: float = 180.0) -> None:
        """Asks a process to stop in order while work is in flight in it. AssertionError when none was seen in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert process.poll() is None, f"{name} ended by itself with {process.returncode}"
            process.send_signal(signal.SIGSTOP)
            try:
                held_until = time.monotonic() + _GENTLY_S
                while not (what := self._looks[name]()) and time.monotonic() < held_until:
                    time.sleep(0.05)
                if what:
                    process.send_signal(signal.SIGTERM)
                    self._say(f"{time.monotonic() - self._began:6.1f} s  SIGTERM {name}: {what}")
                    return
            finally:
                process.send_signal(signal.SIGCONT)
            time.sleep(FREE_S)
        raise AssertionError(f"no work in flight was seen in {name} within {timeout_s:g} s")


def _hold_s(name: str) -> float:
    return next((hold_s for known, hold_s in _HOLD_S.items() if name.startswith(known)), 0.0)
