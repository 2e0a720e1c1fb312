"""Child processes that speak JSON lines, and the reaper that ends them when their parent is killed.

In: a command line. Out: decoded messages from its stdout, their text clean. Invariant: every child leads a process
group of its own, known to the reaper from its start to its end, so none outlives the runner. What it writes to stderr
goes to a log file, and its last lines are kept for the message that says why it died. Failure: `receive` returns None
when the child's output ended.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.text import decode_json

from .config import RunnerConfig, interpreter

__all__ = ["Child", "Reaper", "start_host"]

_LINE_LIMIT = 8 * 1024 * 1024
"""Above an agent host's largest result, so that only a broken child exceeds it."""
_TAIL_LINES = 8

logger = logging.getLogger(__name__)


class Reaper:
    """Tells a small process which process groups to kill if this process dies without a word."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("reaper.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def add(self, group: int) -> None:
        """This group must not outlive us."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """This group has ended; its number may be used again."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def close(self) -> None:
        """Ends the reaper, which kills what was not removed."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)


class Child:
    """One child process. Use from one event loop."""

    def __init__(self, process: asyncio.subprocess.Process, reaper: Reaper, log: IO[bytes] | None) -> None:
        self._process = process
        self._reaper = reaper
        self._log = log
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._stderr = asyncio.create_task(self._drain())
        self.pid = process.pid
        reaper.add(process.pid)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        config: RunnerConfig,
        reaper: Reaper,
        *,
        env: Mapping[str, str],
        name: str,
    ) -> Child:
        """Starts it; `name` is its log file's. Raises OSError when it cannot be executed."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=config.cwd,
            start_new_session=True,
            limit=_LINE_LIMIT,
        )
        log_file = Path(config.log_dir, f"{name}.log") if config.log_dir else None
        return cls(process, reaper, log_file.open("ab", buffering=0) if log_file else None)

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(65536):
            if self._log is not None:
                self._log.write(chunk)
            lines = chunk[-4096:].decode(errors="replace").splitlines()
            self._tail.extend(line[:300] for line in lines if line.strip())

    @property
    def last_words(self) -> str:
        """The end of its stderr, for people."""
        return " | ".join(self._tail)[-1500:]

    async def send(self, message: Mapping[str, Any]) -> None:
        """Raises ConnectionError when the child is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when the output ended or was not what we speak."""
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            message = decode_json(line) if line else None
        except (ValueError, RecursionError) as error:
            logger.warning("child %d wrote what is no message: %s", self.pid, type(error).__name__)
            return None
        return message if isinstance(message, dict) else None

    async def write_input(self, data: bytes) -> None:
        """Writes all of stdin and closes it; a child that does not read it is no error."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        self._process.stdin.close()

    async def read_last_line(self, limit: int) -> str:
        """Reads stdout to its end, keeping `limit` bytes at most; its last line that is not blank."""
        assert self._process.stdout is not None
        kept = b""
        while chunk := await self._process.stdout.read(65536):
            kept = (kept + chunk)[-limit:]
        lines = [line for line in kept.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""

    async def wait(self) -> int:
        """Its exit status; negative: the signal that ended it."""
        return await self._process.wait()

    async def kill(self) -> int:
        """Kills its whole group and waits. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        status = await self._process.wait()
        self._reaper.remove(self.pid)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stderr, 1.0)
        if self._log is not None:
            self._log.close()
            self._log = None
        return status


async def start_host(
    script: str, reference: str, config: RunnerConfig, reaper: Reaper, *, env: Mapping[str, str], name: str
) -> tuple[Child, dict[str, Any]]:
    """A process of `host_main.py` that has loaded the function, and what it said when it was ready.

    Raises ConfigurationError (the function cannot be loaded), UnavailableError (the process died or hung), OSError.
    """
    folder = Path(__file__).parent.resolve() / "hosted"
    command = [interpreter(config), str(folder / "host_main.py"), str(folder / script), reference]
    child = await Child.start(command, config, reaper, env=env, name=name)
    message: dict[str, Any] | None = None
    try:
        message = await asyncio.wait_for(child.receive(), config.start_timeout_s)
    except TimeoutError:
        pass
    finally:
        if message is None or message["op"] != "ready":
            await child.kill()
    if message is None:
        raise UnavailableError(f"{name} died or hung at its start: {child.last_words}")
    if message["op"] != "ready":
        raise ConfigurationError(f"{reference}: {message['error']}")
    return child, message
