"""Agents in any language: one process per rollout, the task on stdin, the answer on the last line of stdout.

In: rollouts. Out: an AgentResult each; spans are not counted (`spans_exported` None). Invariant: the whole process
group is dead before the result is given; stdout is bounded. Failure: a non-zero status is `failed`, except 75
(EX_TEMPFAIL of sysexits.h), by which a command says that it was not to blame: `aborted`, and tried again. So is any
end but success after a last call that the gateway answered 5xx (`attempt.py` knows).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
from collections.abc import AsyncIterator

from tracegrad.schemas.records.rollouts import RolloutRequest, RolloutState

from .agent_environment import command_environment
from .agent_result import AgentResult
from .children import Child, Reaper
from .config import RunnerConfig

__all__ = ["CommandPool"]

_MAX_OUTPUT_BYTES = 1_000_000
_TEMPORARY_FAILURE = 75


class CommandPool:
    """Runs at most `concurrency` commands at once."""

    def __init__(self, config: RunnerConfig, reaper: Reaper) -> None:
        self._config = config
        self._reaper = reaper
        self._places = asyncio.Semaphore(config.concurrency)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[CommandPool]:
        """Waits for a place."""
        async with self._places:
            yield self

    async def run(self, request: RolloutRequest, attempt: str) -> AgentResult:
        """One rollout in a process of its own."""
        config, started = self._config, time.monotonic()
        assert config.command is not None
        env = command_environment(
            config, os.environ, rollout=request.rollout_id, attempt=attempt, span=secrets.token_hex(8)
        )
        try:
            child = await Child.start(config.command, config, self._reaper, env=env, name="agent-command")
        except OSError as error:
            reason = f"cannot start: {error.strerror}"
            return AgentResult(state=RolloutState.ABORTED, error=reason, duration_s=0.0)
        task = json.dumps({"id": request.task_id, "input": request.input}).encode() + b"\n"
        try:
            output, status = await asyncio.wait_for(_converse(child, task), request.limits.time_s)
        except TimeoutError:
            return AgentResult(state=RolloutState.TRUNCATED, error="time limit", duration_s=time.monotonic() - started)
        finally:
            await child.kill()
        state = {0: RolloutState.SUCCEEDED, _TEMPORARY_FAILURE: RolloutState.ABORTED}.get(status, RolloutState.FAILED)
        return AgentResult(
            state=state,
            output=output if status == 0 else None,
            error=None if status == 0 else f"exit status {status}",
            duration_s=time.monotonic() - started,
        )

    async def close(self) -> None:
        """Nothing to do: each command is killed where it was awaited."""


async def _converse(child: Child, task: bytes) -> tuple[str, int]:
    _, output = await asyncio.gather(child.write_input(task), child.read_last_line(_MAX_OUTPUT_BYTES))
    return output, await child.wait()
