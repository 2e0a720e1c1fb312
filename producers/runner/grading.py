"""Asks the user's grader, in a process of its own, and tells a score from every way not to get one.

In: a task, an output, how the attempt went. Out: the rewards. Invariant: one judgement never takes longer than
`time_limit_s` plus a restart; a grader that raises, hangs, dies or answers nonsense leaves the attempt unscored
with the reason. Failure: ConfigurationError when the grader cannot be imported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import msgspec

from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.records.rollouts import AGENT_REWARD, Reward, RolloutRequest

from .agent_environment import grader_environment
from .children import Child, Launcher
from .config import RewardConfig

__all__ = ["Grader"]

DEFAULT_REWARD = "reward"
_MAX_ASKED = 2
"""Times that a grader whose process dies is asked: whoever shares its user may have killed it."""

logger = logging.getLogger(__name__)


def rewards_of(
    values: dict[str, float | None], unscored: str, request: RolloutRequest, attempt: str, *, source: str
) -> tuple[Reward, ...]:
    """The records of a grade: a value or a reason for each name given and each name awaited.

    A grader that returns other names than the default one replaces it, so that nobody waits for `reward`.
    """
    awaited = tuple(name for name in request.rewards_awaited if name != AGENT_REWARD) or (DEFAULT_REWARD,)
    if not values or awaited != (DEFAULT_REWARD,):
        values = {**dict.fromkeys(awaited), **values}
    return tuple(
        Reward(
            rollout_id=request.rollout_id,
            attempt_id=attempt,
            name=name,
            value=value,
            reason="" if value is not None else unscored or f"grader gave no {name!r}",
            source=source,
            idempotency_key=f"{request.rollout_id}/{attempt}/{name}",
            at_ms=int(time.time() * 1000),
        )
        for name, value in sorted(values.items())
    )


class _Grade(msgspec.Struct, frozen=True, kw_only=True):
    """What the grader's process says of one attempt."""

    id: str
    rewards: dict[str, float | None] = {}
    unscored: str = ""


class Grader:
    """One grader process, which judges one attempt at a time. Use from one event loop."""

    def __init__(self, reward: RewardConfig, launcher: Launcher) -> None:
        self._reward = reward
        self._launcher = launcher
        self._turn = asyncio.Lock()
        self._child: Child | None = None

    async def begin(self) -> None:
        """Starts the process, where a grader is named. Raises ConfigurationError when it cannot be imported."""
        if self._reward.grader is not None:
            await self._start()

    async def _start(self) -> Child:
        """Starts the process. Raises ConfigurationError when the grader cannot be imported."""
        assert self._reward.grader is not None
        env, grader = grader_environment(self._reward, os.environ), self._reward.grader
        try:
            self._child, _ = await self._launcher.start_host(
                "grader_host.py", grader, env=env, name="grader", is_agent=False
            )
        except (ConfigurationError, UnavailableError) as error:
            raise ConfigurationError(f"[reward] grader {error}") from error
        return self._child

    async def grade(
        self, request: RolloutRequest, attempt: str, output: Any, how: dict[str, Any]
    ) -> tuple[Reward, ...]:
        """The rewards of one attempt; none where the agent's own is all that counts. Waits for its turn."""
        if self._reward.grader is None:
            return ()
        task = {"id": request.task_id, "input": request.input, "expected": request.expected}
        question = {"id": request.rollout_id, "task": task, "output": output, "attempt": how}
        async with self._turn:
            for _ in range(_MAX_ASKED):
                grade = await self._judge(question)
                if grade is not None:
                    break
        grade = grade or _Grade(id=request.rollout_id, unscored="grader process died")
        return rewards_of(grade.rewards, grade.unscored, request, attempt, source=self._reward.source)

    async def _judge(self, question: dict[str, Any]) -> _Grade | None:
        """What the grader said, or why it could not; None when its process died."""
        answer, reason = None, ""
        try:
            child = self._child or await self._start()
            async with asyncio.timeout(self._reward.time_limit_s):
                await child.send(question)
                answer = await child.receive(_Grade)
        except TimeoutError:
            reason = f"grader took more than {self._reward.time_limit_s:g} s"
        except ConnectionError:
            pass
        except RecursionError:
            reason = "the output is nested too deep for the grader"
        except (ConfigurationError, OSError) as error:  # it worked at the start of this runner
            reason = f"grader cannot be restarted: {error}"[:300]
        finally:
            is_well = answer is not None and answer.id == question["id"]
            if self._child is not None and not is_well:
                status, self._child = await self._child.kill(), None
                logger.warning("grader process ended (exit status %d); the next question gets a new one", status)
        if reason:
            return _Grade(id=question["id"], unscored=reason)
        return answer if is_well else None

    async def close(self) -> None:
        """Kills the process."""
        if self._child is not None:
            await self._child.kill()
