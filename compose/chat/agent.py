"""The example's agent as a person's counterpart: its own code and tools, in a process of its own for each question.

In: a question. Out: what it answers, as it would answer a task. Invariant: of ours it gets the relay's address and key,
no others. Failure: UnavailableError: what it raised, that it ended, or that its time is up; ConfigurationError: no such
file is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracegrad.producers.runner.agent_environment import inherited, of_task
from tracegrad.producers.runner.config import AgentConfig
from tracegrad.schemas.errors import ConfigurationError, UnavailableError

from ..die_with_parent import guarded
from ..loopback import without_proxy

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
    try:
        told = {"answer": runner.run(answer(json.load(sys.stdin)))}
    except Exception as error:  # the user's code
        told = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(told, default=str), file=out, flush=True)
"""
"""Standard library alone: it runs under the agent's own Python."""


class ChatAgent:
    """Who is asked."""

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

    def ask(self, question: str) -> Any:
        """What it returns; None: no answer. Blocks for `[agent] time_limit_s` at most. Raises UnavailableError."""
        agent, task = self._agent, {"id": "chat", "input": question}
        if agent.callable is None:
            try:
                env = self._env | of_task(agent.env_map, question)
            except ValueError as error:
                raise ConfigurationError(f"[agent] {error}") from error
            return self._last_line(list(agent.argv), env, task)
        file, _, name = agent.callable.rpartition(":")
        line = self._last_line([agent.python or sys.executable, "-c", _HOST, file, name], self._env, task)
        if line is None:
            raise UnavailableError("the agent: its process ended")
        told = json.loads(line)
        if "error" in told:
            raise UnavailableError(f"the agent: {told['error']}")
        return told["answer"]

    def _last_line(self, argv: list[str], env: Mapping[str, str], task: dict[str, str]) -> str | None:
        with self._start(argv, env) as process:
            try:
                out, _ = process.communicate(json.dumps(task).encode(), timeout=self._agent.time_limit_s)
            except subprocess.TimeoutExpired as error:
                raise UnavailableError("the agent: it took too long") from error
            finally:
                process.kill()
        if process.returncode:
            raise UnavailableError(f"the agent: its process ended with exit status {process.returncode}")
        lines = out.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else None

    def _start(self, argv: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        callable_, cwd = self._agent.callable, self._agent.cwd or os.getcwd()
        for path in filter(None, (callable_ and callable_.rpartition(":")[0], cwd)):
            if not Path(path).exists():
                raise ConfigurationError(
                    f"[agent]: expected {path}, which the run was trained with, got no such file; if it has moved, "
                    "put a link to it there"
                )
        return subprocess.Popen(
            guarded(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env), cwd=cwd, start_new_session=True
        )
