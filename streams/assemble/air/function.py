"""A user's own rule: a pure function of an episode's record, in a process of its own with a time limit.

In: `file.py:function`, or a name that an installed package declares under the entry points `tracegrad.air`; episodes.
Out: what it pays: (call id, name, value). Invariant: an episode takes at most the limit and a start; a function that
raises, hangs, dies or answers nonsense pays nothing for it, and the reason is told; the process ends with the object,
and with this program. Blocking: the fold waits, as it would for a rule. Failure: ConfigurationError when it cannot be
imported at the start.
"""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.section import declared, nearest

from . import function_host

_START_S = 60.0
"""For the import of the user's file, which may be large."""
_MAX_ANSWER = 16 * 1024 * 1024


class FunctionAnswer(NamedTuple):
    """Of one episode."""

    pays: Sequence[tuple[str, str, float | None]] = ()
    """(call id, name, value); None stands for a value that is not finite."""
    problem: str = ""
    """Why it pays nothing: `timeout`, `died`, `raised`, `bad_answer`; else empty."""
    detail: str = ""


class _Message(msgspec.Struct, frozen=True):
    error: str = ""
    pays: list[tuple[str, str, float | None]] = []


class PayFunction:
    """One process. Not thread-safe."""

    def __init__(self, reference: str, limit_s: float) -> None:
        if ":" not in reference and reference not in (others := declared(function_host.GROUP)):
            raise ConfigurationError(f"function: no function {reference!r}; {nearest(reference, others)}")
        self._reference = reference
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def __call__(self, episode: Episode) -> FunctionAnswer:
        """What it pays for an episode."""
        if self._process is None:
            try:
                self._start()
            except ConfigurationError as error:
                return FunctionAnswer(problem=Reason.DIED, detail=str(error))
        try:
            self._asked.send_bytes(EPISODES.encode(episode))
            told = self._heard(self._limit_s)
        except TimeoutError:
            self.close()
            return FunctionAnswer(problem=Reason.TIMEOUT, detail=f"took more than {self._limit_s:g} s")
        except (OSError, EOFError):
            self.close()
            return FunctionAnswer(problem=Reason.DIED, detail="its process ended")
        except msgspec.DecodeError as error:
            self.close()
            return FunctionAnswer(problem=Reason.BAD_ANSWER, detail=str(error))
        return FunctionAnswer(problem=Reason.RAISED, detail=told.error) if told.error else FunctionAnswer(told.pays)

    def close(self) -> None:
        """Kills the process; the next episode gets a new one. Who lets go of this object need not call it."""
        if self._process is not None:
            self._process = None
            self._end()

    def _start(self) -> None:
        self._asked, theirs = Pipe()
        # A session of its own: a terminal's Ctrl-C is for who asks, and would else be what an episode is not paid for.
        self._process = subprocess.Popen(
            [sys.executable, "-m", function_host.__name__, str(theirs.fileno()), self._reference],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what the user's code prints is no output of `replay --json`
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._end = weakref.finalize(self, _kill, self._process, self._asked)
        try:
            problem = self._heard(_START_S).error
        except (OSError, EOFError, msgspec.DecodeError) as error:
            problem = f"function: {self._reference} cannot be used: {error!r}; mend it and start again"
        if problem:
            self.close()
            raise ConfigurationError(problem)

    def _heard(self, limit_s: float) -> _Message:
        """Raises TimeoutError, OSError, EOFError, DecodeError."""
        if not self._asked.poll(limit_s):
            raise TimeoutError(f"took more than {limit_s:g} s")
        return msgspec.json.decode(self._asked.recv_bytes(_MAX_ANSWER), type=_Message)


def _kill(process: subprocess.Popen[bytes], asked: Connection) -> None:
    process.kill()
    process.wait()
    asked.close()
