"""One supervised child process: how it is started, watched, asked to stop and, past its time, killed.

In: a ProcessSpec. Out: a Child with its state, its last log lines and why it ended. Invariants: each child leads
a session of its own, so a Ctrl-C in the terminal reaches the supervisor alone, and whatever a dead child leaves
behind in its session is killed with it. It is overdue when its work loop gave no beat for longer than it had said, in
time in which this process looked: a supervisor that was stopped itself has missed nothing. The kernel kills a child
whose supervisor dies (`die_with_parent.py`), and it watches the thread that started it: start children from the
supervisor's main thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tracegrad.schemas.beat import WITHIN_S
from tracegrad.schemas.errors import AWAY_EXIT_STATUS, DIVERGED_EXIT_STATUS, FATAL_EXIT_STATUS
from tracegrad.schemas.records.process_status import ProcessState, SupervisedProcess

from ..beats import BeatRecord, read_beat
from ..die_with_parent import guarded
from ..engine.failed_start import FailedStart
from ..loopback import GatewaySocket
from ..metrics.endpoint import withdraw

_logger = logging.getLogger(__name__)
_LOOK_S = 5.0
"""At most this counts as silence between two looks: a supervisor that was stopped itself has missed the beats."""
_IDLE_SHARE = 0.01
"""Of one core; a program that is stopped, or waits for ever, uses less."""
_MAX_LOG_BYTES = 16 * 1024 * 1024
"""A log that is larger when its process starts is set aside once, so restarts cannot fill the disk."""
_LAST_LINES = 12
_MAX_OUTPUT = 256 * 1024
"""Of what a process wrote, the end that is looked through for the cause of its death."""
_CAUSE_FOLLOWS, _LOG_FOLLOWS = "; root cause: ", "; last lines of "
"""Between why a process ended and what it wrote, which a topic does not get."""
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
"""Ids of processes, addresses, amounts: two deaths of one cause differ in them."""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and what its exits mean."""

    name: str
    """Unique; also its log's name."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    """Put over the supervisor's own environment."""
    listens_at: tuple[str, int] | None = None
    """Host and port where the supervisor listens for it, so that nobody is refused while it is started again; None:
    it listens by itself, or not at all."""
    layer: int = 0
    """Started in ascending order, stopped in descending order; equal layers together."""
    is_job: bool = False
    """Exits with 0 when its work is done; else it runs until it is stopped, and any exit by itself is a death."""
    is_spare: bool = False
    """The run goes on without it, also when it is fatal."""
    is_ready: Callable[[], bool] | None = None
    """Answers within a second or so; the next layer starts only when it says yes. None: nobody waits for it."""
    ready_timeout_s: float = 60.0
    """Past it, what is not ready counts as dead."""
    stop_timeout_s: float = 10.0
    """From the polite signal to SIGKILL."""
    diagnose: Callable[[str], FailedStart] | None = None
    """Of a program that is not ours: what its log says of a start that failed. Asked when it dies before any work."""
    beats: Path | None = None
    """The file of its beats (compose/beats.py)."""
    target: Path | None = None
    """Where it says at which port its metrics are (compose/metrics/endpoint.py); it goes when the process has gone."""
    ask_work: Callable[[], int | None] | None = None
    """For a program that gives no beats: units of work that it says it has done, within a second or so; None: no
    answer. While it does not answer, its use of the CPU counts as a beat: an engine that loads is at work."""
    ask_every_s: float = 5.0


class Child:
    """A spec and its present process. Not thread-safe: the supervisor's main thread owns it."""

    def __init__(self, spec: ProcessSpec, logs: Path) -> None:
        self.spec = spec
        self.state = ProcessState.WAITING
        self.log_path = logs / f"{spec.name}.log"
        self.num_restarts = 0
        self.failures_in_a_row = 0
        self.not_before = 0.0
        self.started_at = 0.0
        self.why = ""
        self.exit_status: int | None = None
        """Of the last process that ended; negative: the signal that killed it."""
        self.is_hopeless = False
        """Whether every other start would end as the last one did."""
        self.has_served = False
        """Whether a process of it was ready, or at work, since the run began."""
        self._cause = ""
        """Of the last death by exit before any work; empty where another start may not meet it."""
        self.beat = BeatRecord()
        """The present process's last."""
        self.turned_at: float | None = None
        """When its work loop was first seen to turn."""
        self._silent_s = 0.0
        """For how long its beat was seen unchanged."""
        self._asked_at = 0.0
        self._cpu_s = 0.0
        self._struck = ""
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = GatewaySocket(*spec.listens_at) if spec.listens_at else None

    @property
    def pid(self) -> int | None:
        """Of the living process."""
        return self._process.pid if self._process and self.state is ProcessState.RUNNING else None

    def start(self) -> None:
        """Starts the process; an argv that cannot be executed makes the child fatal."""
        if self.log_path.exists() and self.log_path.stat().st_size > _MAX_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        self.beat, self.turned_at, self._silent_s, self._struck = BeatRecord(), None, 0.0, ""
        if self.spec.beats is not None:
            self.spec.beats.unlink(missing_ok=True)
        self._withdraw()
        try:
            # The launcher is what is executed: it would find out too late.
            if shutil.which(self.spec.argv[0]) is None:
                raise FileNotFoundError(errno.ENOENT, "no such program")
            variables, fds = self._socket.inherited() if self._socket else ({}, ())
            with self.log_path.open("ab") as log:
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    guarded(self.spec.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.spec.env, **variables},
                    pass_fds=fds,
                    start_new_session=True,
                )
        except OSError as error:
            self.state = ProcessState.FATAL
            self.why = f"cannot start {self.spec.argv[0]}: {error.strerror}"
            return
        self.started_at = time.monotonic()
        self.state = ProcessState.RUNNING

    def has_ended(self) -> bool:
        """Whether the running process has just ended; what it left in its session is killed."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return False
        self.listen(0.0)
        told = self._struck or describe_exit(status)
        self.strike()
        self.exit_status = status
        cause = ""
        if self.turned_at is None and self.spec.diagnose is not None:
            failed = self.spec.diagnose(self._output(_MAX_OUTPUT))
            self.is_hopeless = self._is_hopeless(failed, status)
            cause = _CAUSE_FOLLOWS + failed.cause if failed.cause else ""
        last = "\n".join(self._output(16_384).splitlines()[-_LAST_LINES:]) or "(it wrote nothing)"
        self.why = f"{told}{cause}{_LOG_FOLLOWS}{self.log_path}:\n{last}"
        if status == 0 and self.spec.is_job:
            self.state = ProcessState.DONE
            self.why = ""
        else:
            is_fatal = self.is_hopeless or status in (FATAL_EXIT_STATUS, DIVERGED_EXIT_STATUS)
            self.state = ProcessState.FATAL if is_fatal else ProcessState.WAITING
        return True

    def _is_hopeless(self, failed: FailedStart, status: int) -> bool:
        """By what is known to last, or because the start before ended for the same cause and none ever served."""
        is_of_its_own = status > 0 and status != AWAY_EXIT_STATUS and not failed.is_passing
        before, self._cause = self._cause, _NUMBER.sub("#", failed.cause) if is_of_its_own else ""
        return failed.is_lasting or (bool(self._cause) and self._cause == before and not self.has_served)

    def listen(self, elapsed_s: float) -> None:
        """Takes its newest sign of life, `elapsed_s` after the last look."""
        beat = self._newest_beat()
        if beat is None or beat.num_beats == self.beat.num_beats:
            self._silent_s += min(elapsed_s, _LOOK_S)
            return
        self.beat, self._silent_s = beat, 0.0
        if beat.num_turns and self.turned_at is None:
            self.turned_at, self.has_served = time.monotonic(), True

    def _newest_beat(self) -> BeatRecord | None:
        if self.spec.beats is not None:
            return read_beat(self.spec.beats)
        if (
            self.spec.ask_work is None
            or self._process is None
            or time.monotonic() - self._asked_at < self.spec.ask_every_s
        ):
            return None
        work = self.spec.ask_work()
        self._asked_at = time.monotonic()
        before, self._cpu_s = self._cpu_s, session_cpu_s(self._process.pid)
        if work is not None:
            told = BeatRecord(num_turns=1, within_s=WITHIN_S, work=work, doing="")
        elif self._cpu_s - before > _IDLE_SHARE * self.spec.ask_every_s:
            told = self.beat
        else:
            return None
        return msgspec.structs.replace(told, num_beats=self.beat.num_beats + 1)

    @property
    def overdue(self) -> str:
        """How long it has given no sign of life, and at what, if that is too long; else empty."""
        if self.state is not ProcessState.RUNNING or (self.spec.beats is None and self.spec.ask_work is None):
            return ""
        # Said once: one that the kernel holds dies when it is let go.
        if self._struck or self._silent_s <= self.beat.within_s:
            return ""
        return f"frozen: no sign of life for {self._silent_s:.0f} s ({self.beat.doing or 'at work'})"

    def stop_listening(self) -> None:
        """It is not started again: who connects is refused once the process has stopped listening too."""
        if self._socket is not None:
            self._socket.close()

    def ask_to_stop(self) -> None:
        """SIGTERM to the process itself: it ends its own helpers in order."""
        if self._process is not None:
            self._process.terminate()

    def wait_stopped(self, timeout_s: float) -> bool:
        """Whether it ended in time."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def strike(self, why: str = "") -> None:
        """SIGKILL to its session, and nothing else: `has_ended` finds it dead, and says `why`."""
        self._struck = why
        if self._process is not None:
            # The child leads a session, so its process group id is its pid, also after it has gone.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._withdraw()

    def kill(self) -> None:
        """SIGKILL to the process and all that it left in its session; does not wait long."""
        self.strike()
        if not self.wait_stopped(5.0):
            _logger.error("%s (pid %s) does not die; the kernel holds it", self.spec.name, self.pid)
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.STOPPED

    def _withdraw(self) -> None:
        if self.spec.target is not None:
            withdraw(self.spec.target)

    def _output(self, num_bytes: int) -> str:
        """The end of what this process, not an earlier one, wrote."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - num_bytes))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return "(no log)"

    def status(self) -> SupervisedProcess:
        """For people; what the process wrote stays in its log."""
        return SupervisedProcess(
            process=self.spec.name,
            state=self.state,
            pid=self.pid,
            num_restarts=self.num_restarts,
            since_ms=int(1000 * (time.time() - (time.monotonic() - self.started_at))) if self.started_at else 0,
            why=self.why.partition("\n")[0].partition(_LOG_FOLLOWS)[0].partition(_CAUSE_FOLLOWS)[0],
            at_ms=int(1000 * time.time()),
        )


def describe_exit(status: int) -> str:
    """`exit status 1` or `killed by SIGSEGV`."""
    if status >= 0:
        return f"exit status {status}"
    if status == -signal.SIGKILL:
        return "killed by SIGKILL, not by tracegrad: perhaps the system ran out of memory"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def session_cpu_s(leader: int) -> float:
    """CPU seconds used by the living processes of a session; 0 where the system does not say."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # After the name, which may hold anything: state, parent, group, session, ...
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
