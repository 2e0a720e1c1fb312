"""A user's own rule: a pure function of an episode's record, in a process of its own with a time limit.

In: `file.py:function`, or a name that an installed package declares under the entry points `tracegrad.air`; episodes.
Out: what it pays: (call id, name, value). Invariant: an episode takes at most the limit and a start; a function that
raises, hangs, dies or answers nonsense pays nothing for it, and the reason is told; the process ends with the object,
and with this program, by the end of its stdin. Blocking: the fold waits, as it would for a rule. Failure:
ConfigurationError when it cannot be imported at the start.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.section import declared, nearest

_START_S = 60.0
"""For the import of the user's file, which may be large."""
_MAX_ANSWER = 16 * 1024 * 1024
_HOST = str(Path(__file__).with_name("function_host.py"))


class FunctionAnswer(NamedTuple):
    """Of one episode."""

    pays: Sequence[tuple[str, str, float | None]] = ()
    """(call id, name, value); None stands for a value that is not finite."""
    problem: str = ""
    """Why it pays nothing: `timeout`, `died`, `raised`, `bad_answer`; else empty."""
    detail: str = ""


class _Line(msgspec.Struct, frozen=True):
    ready: bool = False
    error: str = ""
    pays: list[tuple[str, str, float | None]] = []


class PayFunction:
    """One process. Not thread-safe."""

    def __init__(self, reference: str, limit_s: float) -> None:
        self._reference = _resolved(reference)
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[[subprocess.Popen[bytes]], PayFunction] | None = None
        self._start()

    def __call__(self, episode: Episode) -> FunctionAnswer:
        """What it pays for an episode."""
        if self._process is None:
            try:
                self._start()
            except ConfigurationError as error:
                return FunctionAnswer(problem=Reason.DIED, detail=str(error))
        try:
            line = self._exchange(EPISODES.encode(episode) + b"\n", self._limit_s)
            told = msgspec.json.decode(line, type=_Line)
        except TimeoutError:
            self.close()
            return FunctionAnswer(problem=Reason.TIMEOUT, detail=f"took more than {self._limit_s:g} s")
        except OSError:
            self.close()
            return FunctionAnswer(problem=Reason.DIED, detail="its process ended")
        except msgspec.DecodeError as error:
            self.close()
            return FunctionAnswer(problem=Reason.BAD_ANSWER, detail=str(error))
        return FunctionAnswer(problem=Reason.RAISED, detail=told.error) if told.error else FunctionAnswer(told.pays)

    def close(self) -> None:
        """Kills the process; the next episode gets a new one. Who lets go of this object need not call it."""
        self._process = None
        if self._end is not None:
            self._end()

    def _start(self) -> None:
        # A session of its own: a terminal's Ctrl-C is for who asks, and would else be what an episode is not paid for.
        self._process = subprocess.Popen(
            [sys.executable, _HOST, self._reference],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _kill, self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        try:
            told = msgspec.json.decode(self._exchange(b"", _START_S), type=_Line)
            problem = told.error
        except (OSError, msgspec.DecodeError) as error:  # TimeoutError is one
            problem = str(error) or f"took more than {_START_S:g} s to be imported"
        if problem:
            self.close()
            raise ConfigurationError(f"function: {self._reference} cannot be used: {problem}; mend it and start again")

    def _exchange(self, data: bytes, limit_s: float) -> bytes:
        """Writes all of it and reads one line. Raises OSError, among them TimeoutError."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        into, out = self._process.stdin.fileno(), self._process.stdout.fileno()
        left, answer, end_s = memoryview(data), bytearray(), time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            if left:
                selector.register(into, selectors.EVENT_WRITE)
            while not answer.endswith(b"\n"):
                ready = selector.select(max(0.0, end_s - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fd == out:
                        part = os.read(out, 1 << 16)
                        answer += part
                        if not part or len(answer) > _MAX_ANSWER:
                            raise ConnectionError("its process ended")
                    else:
                        left = left[os.write(into, left[: 1 << 16]) :]
                        if not left:
                            selector.unregister(into)
        return bytes(answer)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _resolved(reference: str) -> str:
    """`file.py:name` as it is; the place of an entry point."""
    if ":" in reference:
        return reference
    others = declared("tracegrad.air")
    if reference not in others:
        raise ConfigurationError(f"function: no function {reference!r}; {nearest(reference, others)}")
    return others[reference].value
