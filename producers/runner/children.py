"""Child processes that speak JSON lines, and the reaper that ends them when their parent is killed.

In: a command line. Out: decoded messages from its stdout, their text clean and without the child's credential.
Invariant: every child leads a process group of its own, known to the reaper from its start to its end, so none outlives
the runner. What it writes to stderr goes to a log file, whose last lines are in the message that says why it died.
Failure: `receive` returns None when the child's output ended; what is no message is passed over, as user code may find
the way to our pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tracegrad.schemas.credentials import masked
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.text import decode_json

from .config import AgentConfig, RunnerHandles
from .sandbox import Sandbox

M = TypeVar("M", bound=msgspec.Struct)
_LINE_LIMIT = 8 * 1024 * 1024
"""Above an agent host's largest result, so that only a broken child exceeds it."""
_START_TIMEOUT_S = 120.0
"""For a host to import the user's function."""
_TAIL_BYTES = 4096
_FOLDER = Path(__file__).parent.resolve()

logger = logging.getLogger(__name__)


class _Started(msgspec.Struct, frozen=True, kw_only=True):
    """What a host says first."""

    op: Literal["ready", "unusable"]
    untraced: str = ""
    """Why no span will be exported."""
    error: str = ""
    """Why the user's function cannot be loaded."""


class Child:
    """One child process. Use from one event loop."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: Path,
        log_begin: int,
        on_end: Callable[[], None],
        shown: str = "",
    ):
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._log = log
        self._log_begin = log_begin
        self._on_end = on_end
        self._shown = shown
        """The credential that it was given, which it may quote in what it says."""
        self._is_noisy = False

    @property
    def last_words(self) -> str:
        """The end of its stderr, for people; empty when it cannot be read."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(self._log_begin, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = masked(file.read(), self._shown).decode(errors="replace").splitlines()
        except OSError:
            return ""
        return " | ".join(line[:300] for line in lines if line.strip())[-1500:]

    async def send(self, message: Mapping[str, Any]) -> None:
        """Raises ConnectionError when the child is gone."""
        self._stdin.write(json.dumps(message).encode() + b"\n")
        await self._stdin.drain()

    async def receive(self, kind: type[M]) -> M | None:
        """The next message of that kind; None when the output ended."""
        while True:
            line = b""
            try:
                line = await self._stdout.readline()
                if not line:
                    return None
                return msgspec.convert(decode_json(masked(line, self._shown)), kind)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                if not self._is_noisy and line != b"\n":
                    self._is_noisy = True
                    logger.warning("child %d wrote what is no message: %s", self._process.pid, type(error).__name__)

    async def converse(self, data: bytes, limit: int) -> tuple[str, int]:
        """Writes all of stdin, then waits for its end: the last line of stdout that is not blank, of `limit` bytes
        that are kept, and the exit status. A child that does not read is no error.
        """
        _, kept = await asyncio.gather(self._write_all(data), self._read_last(limit))
        lines = [line for line in masked(kept, self._shown).decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "", await self._process.wait()

    async def _write_all(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._stdin.write(data)
            await self._stdin.drain()
        self._stdin.close()

    async def _read_last(self, limit: int) -> bytes:
        kept = b""
        while chunk := await self._stdout.read(65536):
            kept = (kept + chunk)[-limit:]
        return kept

    async def kill(self) -> int:
        """Kills its whole group and waits: the exit status; negative: the signal that ended it. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = await self._process.wait()
        self._on_end()
        return status


class Launcher:
    """Starts the children of one agent, and tells a small process which process groups to kill if this process dies
    without a word. Raises ConfigurationError when the agent's sandbox cannot be made.
    """

    def __init__(self, agent: AgentConfig, handles: RunnerHandles) -> None:
        self.agent = agent
        self.handles = handles
        gateways = (handles.llm_url, handles.otlp_endpoint)
        self._sandbox = Sandbox(agent, handles.hidden, gateways) if agent.sandbox == "bubblewrap" else None
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", str(_FOLDER / "reaper.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Within it agents can be started."""
        async with self._sandbox.opened() if self._sandbox is not None else contextlib.nullcontext():
            yield

    async def start(self, command: Sequence[str], *, env: Mapping[str, str], name: str, is_agent: bool) -> Child:
        """In the agent's folder, an agent in its sandbox; `name` is its log file's.

        Raises OSError when it cannot be executed.
        """
        if is_agent and self._sandbox is not None:
            command = self._sandbox.wrap(command)
        log = Path(self.handles.log_dir, f"{name}.log")
        with log.open("ab") as stderr:
            begin = stderr.tell()  # before the child, which shares the offset, moves it
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=env,
                cwd=self.agent.cwd,
                start_new_session=True,
                limit=_LINE_LIMIT,
            )
        self._tell(f"+{process.pid}\n")
        return Child(process, log, begin, lambda: self._tell(f"-{process.pid}\n"), env.get("OPENAI_API_KEY", ""))

    async def start_host(
        self, script: str, reference: str, *, env: Mapping[str, str], name: str, is_agent: bool
    ) -> tuple[Child, str]:
        """A process of `host_main.py` that has loaded the function, and why it exports no span, if so.

        Raises ConfigurationError (the function cannot be loaded), UnavailableError (the process died or hung), OSError.
        """
        python, folder = self.agent.python or sys.executable, _FOLDER / "hosted"
        command = [python, str(folder / "host_main.py"), str(folder / script), reference]
        child = await self.start(command, env=env, name=name, is_agent=is_agent)
        started: _Started | None = None
        try:
            with contextlib.suppress(TimeoutError):
                started = await asyncio.wait_for(child.receive(_Started), _START_TIMEOUT_S)
            if started is None:
                raise UnavailableError(f"{reference}: {name} died or hung at its start: {child.last_words}")
            if started.op != "ready":
                raise ConfigurationError(f"{reference}: {started.error}")
        except BaseException:  # a cancellation too: the child would outlive whoever started it
            await child.kill()
            raise
        return child, started.untraced

    def _tell(self, line: str) -> None:
        assert self._reaper.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._reaper.stdin.write(line)
            self._reaper.stdin.flush()

    def close(self) -> None:
        """Ends the reaper, which kills what was not removed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reaper.communicate(timeout=5)
