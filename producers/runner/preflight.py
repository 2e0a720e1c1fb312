"""Loads agent and grader once, as a run will, before anything else of it starts; and asks the grader about one task.

In: the sections, and where a runner would work. Out: a sentence where the grader is odd. Failure: ConfigurationError
when one cannot be loaded in the environment that runs it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import GroupRef, RolloutRequest, RolloutState
from tracegrad.schemas.records.tasks import Task

from .children import Launcher
from .config import AgentConfig, RewardConfig, RunnerHandles
from .grading import Grader
from .hosts import HostPool

_HOW = {"state": RolloutState.SUCCEEDED.value, "error": "", "duration_s": 0.0, "calls": []}
"""An attempt that made no call."""


async def check_functions(agent: AgentConfig, reward: RewardConfig, handles: RunnerHandles, task: Task | None) -> str:
    """What is odd about the grader, asked about a task whose `expected` is known; empty: nothing, or nobody knows.

    Raises:
        ConfigurationError: agent or grader cannot be loaded; with what was raised, and the line of the user's.
    """
    launcher = Launcher(agent, handles)
    pool, grader = HostPool(launcher, count=1, per_host=1, name="agent-host"), Grader(reward, launcher)
    try:
        async with launcher.opened():
            await grader.begin()
            if agent.callable is not None:
                async with pool.slot():
                    pass
            return "" if task is None or reward.grader is None else await _odd(grader, task)
    finally:
        await asyncio.gather(pool.close(), grader.close())
        await asyncio.to_thread(launcher.close)


async def _odd(grader: Grader, task: Task) -> str:
    """By what it pays for the expected answer, given back as it is, and for an empty one."""

    async def asked(output: Any) -> tuple[float | None, str]:
        request = RolloutRequest(
            rollout_id="check",
            group=GroupRef(id="check", size=1, member=0, index=0),
            task_id=task.id,
            input=task.input,
            expected=task.expected,
            policy="",
            purpose=Purpose.TRAIN,
        )
        rewards = await grader.grade(request, "", output, _HOW)
        values = [reward.value for reward in rewards if reward.value is not None]
        return sum(values) if values else None, next((reward.reason for reward in rewards if reward.reason), "")

    (right, why), (wrong, _) = await asked(task.expected), await asked("")
    if right is None:
        return f"the grader gives no reward for the expected answer of task {task.id}, asked without calls: {why}"
    if wrong is not None and right <= wrong:
        return (
            f"the grader pays {right:g} for the expected answer of task {task.id}, and {wrong:g} for an empty one: "
            "does it compare what the agent returns with `expected` in the same form?"
        )
    return ""
