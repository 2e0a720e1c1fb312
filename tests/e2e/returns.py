"""How long a process takes from the end of a fault, or from its restart, to its next unit of work done.

In: a LiveRun, faults by name. Out: Returned records, a line each. Work is read from the process's own beats
(compose/beats.py), which need no broker; an engine's shows in the calls that the gateway records, an agent host's in
the attempts that the runner sees end. Nothing here waits by itself: `look` is called again and again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.e2e.live_run import LiveRun
from tracegrad.compose.beats import read_beat

_EVERY_S = 0.1
_SHOWN_BY = {"engine": "llm", "agent-host": "runner"}
"""Whose work shows theirs."""


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of one process, and its end."""

    name: str
    fault: str
    is_restarted: bool
    down_s: float
    """From the fault's end to the restart; 0 when the same process goes on."""
    back_s: float
    """From there to the next work done."""


@dataclass
class _Fault:
    name: str
    what: str
    ended_at: float
    pid: int | None
    """Of the process that had it."""
    is_killed: bool
    since: float | None = None
    """The process that is to work lives since then; None: there is none yet."""
    work: int = 0
    """What was done before."""


class Returns:
    """The faults of a run that are not over yet, and those that are."""

    def __init__(self, run: LiveRun, say: Callable[[str], None]) -> None:
        self.done: list[Returned] = []
        self._run = run
        self._say = say
        self._open: list[_Fault] = []
        self._looked_at = 0.0

    def killed(self, name: str, pid: int | None, what: str = "SIGKILL") -> None:
        """That process was killed just now."""
        self._open.append(_Fault(name, what, _now(), pid, is_killed=True))

    def ended(self, name: str, what: str, pid: int | None) -> None:
        """A fault of a process is over; the process may live, or have been restarted meanwhile."""
        self._open.append(_Fault(name, what, _now(), pid, is_killed=False))

    def look(self) -> bool:
        """Whether every process has worked again."""
        if time.monotonic() - self._looked_at >= _EVERY_S:
            self._looked_at = time.monotonic()
            self._open = [fault for fault in self._open if not self._is_back(fault)]
        return not self._open

    def wait(self, timeout_s: float) -> None:
        """Until every process has worked again; AssertionError names those that have not."""
        deadline = time.monotonic() + timeout_s
        while not self.look():
            status = self._run.poll()
            assert status is None, f"the run ended with {status}:\n{self._run.tail()}"
            missing = ", ".join(f"{fault.name} ({fault.what})" for fault in self._open)
            assert time.monotonic() < deadline, f"no work within {timeout_s:g} s: {missing}\n{self._run.tail()}"
            time.sleep(_EVERY_S)

    def _is_back(self, fault: _Fault) -> bool:
        shown_by = _SHOWN_BY.get(fault.name, fault.name)
        pid = self._run.pid_of(fault.name)
        if pid is None or (fault.is_killed and pid == fault.pid):
            return False
        if fault.since is None:
            fault.since = max(fault.ended_at, _created_at(pid))
            # A new process begins at nothing; what another one shows, or the same goes on with, at what it has done.
            is_new = pid != fault.pid and shown_by == fault.name
            fault.work = 0 if is_new else self._work(shown_by)
        if self._work(shown_by) <= fault.work:
            return False
        returned = Returned(
            name=fault.name,
            fault=fault.what,
            is_restarted=pid != fault.pid,
            down_s=fault.since - fault.ended_at,
            back_s=max(0.0, _now() - fault.since),
        )
        self.done.append(returned)
        again = f"restarted after {returned.down_s:.1f} s, " if returned.is_restarted else ""
        self._say(f"{'':9} {fault.name} back from {fault.what}: {again}at work {returned.back_s:.1f} s later")
        return True

    def _work(self, name: str) -> int:
        beat = read_beat(self._run.path / "beats" / name)
        return beat.work if beat is not None else 0


def table(done: Sequence[Returned]) -> list[str]:
    """Lines for people: per process and fault how often, and the median and the greatest time to work."""
    rows: dict[tuple[str, str], list[float]] = {}
    for returned in done:
        rows.setdefault((returned.name, returned.fault), []).append(returned.back_s)
    return [
        f"{name:22} {fault:14} {len(times)} x, back to work in {sorted(times)[len(times) // 2]:.1f} s, "
        f"at most {max(times):.1f} s"
        for (name, fault), times in sorted(rows.items())
    ]


def _now() -> float:
    """Seconds since the system started, as the kernel notes the start of a process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _created_at(pid: int) -> float:
    """By the same clock."""
    try:
        # After the name, which may hold anything: state, parent, ...; the 22nd field of all is the start in ticks.
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return _now()
    return int(ticks) / os.sysconf("SC_CLK_TCK")
