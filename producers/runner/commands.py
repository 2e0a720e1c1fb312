"""Agents in any language: one process per rollout, the task on stdin, the answer on the last line of stdout.

In: rollouts. Out: an Outcome each; spans are not counted (`spans_exported` None). Invariant: the whole process
group is dead before the result is given; stdout is bounded. Failure: a status other than 0 is `failed`, whatever it
is: that nobody but us was to blame, the gateway says (`attempt.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.rollouts import RolloutRequest, RolloutState

from .agent_environment import command_environment
from .children import Launcher
from .config import AgentConfig
from .outcome import Begin, Outcome, RunAgent

_MAX_OUTPUT_BYTES = 1_000_000


def check_command(agent: AgentConfig) -> None:
    """Raises ConfigurationError when the agent is a command that cannot be executed at all."""
    program = agent.argv[0] if agent.argv else ""
    path = str(Path(agent.cwd or ".", program)) if "/" in program else program
    if agent.command is not None and shutil.which(path, path=agent.env.get("PATH", os.environ.get("PATH"))) is None:
        raise ConfigurationError(f"[agent] command: cannot be executed: {program!r}")


class CommandPool:
    """Runs at most `concurrency` commands at once."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._places = asyncio.Semaphore(launcher.agent.concurrency)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[RunAgent]:
        """Waits for a place."""
        async with self._places:
            yield self._run

    async def _run(self, request: RolloutRequest, attempt: str, begin: Begin) -> Outcome:
        """One rollout in a process of its own."""
        await begin(None)
        started = time.monotonic()
        agent, span = self._launcher.agent, secrets.token_hex(8)
        names = {"rollout": request.rollout_id, "attempt": attempt, "span": span}
        try:
            env = command_environment(agent, self._launcher.handles, os.environ, task=request.input, **names)
        except ValueError as error:
            return Outcome(state=RolloutState.FAILED, error=str(error))
        try:
            child = await self._launcher.start(agent.argv, env=env, name="agent-command", is_agent=True)
        except OSError as error:
            reason = f"cannot start: {error.strerror}"
            return Outcome(state=RolloutState.ABORTED, error=reason)
        task = json.dumps({"id": request.task_id, "input": request.input}).encode() + b"\n"
        try:
            output, status = await asyncio.wait_for(child.converse(task, _MAX_OUTPUT_BYTES), request.limits.time_s)
        except TimeoutError:
            return Outcome(state=RolloutState.TRUNCATED, error="time limit", duration_s=time.monotonic() - started)
        finally:
            await child.kill()
        duration_s = time.monotonic() - started
        if status == 0:
            return Outcome(state=RolloutState.SUCCEEDED, output=output, duration_s=duration_s)
        return Outcome(state=RolloutState.FAILED, error=f"exit status {status}", duration_s=duration_s)

    async def close(self) -> None:
        """Nothing to do: each command is killed where it was awaited."""
