"""The example's agent as a person's counterpart: its own code and tools, in a process of its own.

In: a question. Out: what it answers, as it would answer a task. Invariant: of ours it gets the relay's address and key,
no others. Failure: UnavailableError: what it raised, that it ended, or that its time is up; ConfigurationError: no such
file is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from tracegrad.producers.runner.agent_environment import inherited, of_task
from tracegrad.producers.runner.config import AgentConfig
from tracegrad.schemas.errors import ConfigurationError, UnavailableError

from ..die_with_parent import guarded
from ..loopback import without_proxy

__all__ = ["ChatAgent", "moved"]

_HOST = """
import asyncio, importlib.util, inspect, json, os, sys
out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
file, name = sys.argv[1:]
sys.path.insert(0, os.path.dirname(file))
spec = importlib.util.spec_from_file_location("tracegrad_chat_agent", file)
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
solve = getattr(module, name)
async def answer(task):
    found = solve(task)
    return await found if inspect.isawaitable(found) else found
with asyncio.Runner() as runner:
    for line in sys.stdin:
        try:
            told = {"answer": runner.run(answer(json.loads(line)))}
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told, default=str), file=out, flush=True)
"""
"""Standard library alone: it runs under the agent's own Python."""
_ENDED, _LATE = "its process ended", "it took too long"


def moved(agent: AgentConfig, folder: Path) -> AgentConfig:
    """The same agent, whose files lie in `folder` now as they lay in the folder that it runs in."""
    before = Path(agent.cwd or os.getcwd())
    here = folder.absolute()

    def of(text: str, elsewhere: str) -> str:
        path = Path(text)
        is_below = path.is_absolute() and path.is_relative_to(before)
        return str(here / path.relative_to(before)) if is_below else elsewhere

    if agent.callable is None:
        return msgspec.structs.replace(agent, command=tuple(of(one, one) for one in agent.argv), cwd=str(here))
    file, _, name = agent.callable.rpartition(":")
    found = of(file, str(here / Path(file).name))
    return msgspec.structs.replace(agent, callable=f"{found}:{name}", cwd=str(here))


class ChatAgent:
    """As a context manager. One question at a time."""

    def __init__(self, agent: AgentConfig, base_url: str, key: str, environ: Mapping[str, str]) -> None:
        self._agent = agent
        self._env = {
            **inherited(environ, agent.pass_env),
            **agent.env,
            "OPENAI_BASE_URL": f"{base_url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": base_url,
            "ANTHROPIC_API_KEY": key,
            "OTEL_SDK_DISABLED": "true",
            **without_proxy(environ),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[bytes]
        self._reader: threading.Thread

    def __enter__(self) -> ChatAgent:
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._reader.join(10)
            with contextlib.suppress(OSError), process:
                pass  # its pipes are closed

    def ask(self, question: str) -> Any:
        """What it returns; None: no answer. Blocks for `[agent] time_limit_s` at most. Raises UnavailableError."""
        task = {"id": "chat", "input": question}
        return self._call(task) if self._agent.callable is not None else self._run(task)

    def _call(self, task: dict[str, str]) -> Any:
        if self._process is None:
            file, _, name = str(self._agent.callable).rpartition(":")
            self._process = self._start([self._agent.python or sys.executable, "-c", _HOST, file, name], self._env)
            assert self._process.stdout is not None
            self._lines = queue.Queue(maxsize=1_000)
            self._reader = threading.Thread(target=self._read, args=(self._process.stdout, self._lines), daemon=True)
            self._reader.start()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
            self._process.stdin.flush()
            told = json.loads(self._lines.get(timeout=self._agent.time_limit_s))
        except (OSError, ValueError, queue.Empty) as error:
            self.__exit__()
            raise UnavailableError(f"the agent: {_LATE if isinstance(error, queue.Empty) else _ENDED}") from error
        if "error" in told:
            raise UnavailableError(f"the agent: {told['error']}")
        return told["answer"]

    @staticmethod
    def _read(stdout: IO[bytes], lines: queue.Queue[bytes]) -> None:
        for line in stdout:
            lines.put(line)
        lines.put(b"")

    def _run(self, task: dict[str, str]) -> Any:
        argv = list(self._agent.argv)
        try:
            env = self._env | of_task(self._agent.env_map, task["input"])
        except ValueError as error:
            raise ConfigurationError(f"[agent] {error}") from error
        with self._start(argv, env) as process:
            try:
                out, _ = process.communicate(json.dumps(task).encode(), timeout=self._agent.time_limit_s)
            except subprocess.TimeoutExpired as error:
                raise UnavailableError(f"the agent: {_LATE}") from error
            finally:
                process.kill()
        if process.returncode:
            raise UnavailableError(f"the agent: exit status {process.returncode}")
        lines = out.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else None

    def _start(self, argv: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        callable_, cwd = self._agent.callable, self._agent.cwd or os.getcwd()
        for path in filter(None, (callable_ and callable_.rpartition(":")[0], cwd)):
            if not Path(path).exists():
                raise ConfigurationError(
                    f"[agent]: expected {path}, which the run was trained with, got no such file; if it has moved, "
                    "say where its folder is: --agent FOLDER"
                )
        return subprocess.Popen(
            guarded(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env), cwd=cwd, start_new_session=True
        )
