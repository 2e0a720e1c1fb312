"""Asks the user's grader, in a process of its own, and tells a score from every way not to get one.

In: a task, an output, how the attempt went. Out: the rewards. Invariant: one judgement never takes longer than
`time_limit_s` plus a restart; a grader that raises, hangs, dies or answers nonsense, or that rewards a call which the
attempt did not make, leaves the attempt unscored with the reason. Failure: ConfigurationError when the grader cannot be
imported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.records.episodes import AIR_RULE
from tracegrad.schemas.records.rollouts import AGENT_REWARD, MAX_REWARD, Reward, RolloutRequest, is_usable

from .agent_environment import grader_environment
from .children import Child, Launcher
from .config import RewardConfig

DEFAULT_REWARD = "reward"
_MAX_ASKED = 2
"""Times that a grader whose process dies is asked: whoever shares its user may have killed it."""

logger = logging.getLogger(__name__)


class _Grade(msgspec.Struct, frozen=True, kw_only=True):
    """What the grader's process says of one attempt."""

    id: str
    rewards: dict[str, float | None] = {}
    calls: dict[str, dict[str, float]] = {}
    """Of single calls: name -> id of a call, or of a tool call -> value."""
    unscored: str = ""


def rewards_of(grade: _Grade, request: RolloutRequest, attempt: str, *, source: str) -> tuple[Reward, ...]:
    """The records of a grade: those of calls, then a value or a reason for each name given and each name awaited.

    A grader that returns other names than the default one replaces it, so that nobody waits for `reward`. Whoever waits
    for a name has all that stands before it: those of calls come first, and a name of the whole is always there.
    """
    values = grade.rewards
    awaited = tuple(name for name in request.rewards_awaited if name not in (AGENT_REWARD, *grade.calls))
    awaited = awaited or (DEFAULT_REWARD,)
    if not values or awaited != (DEFAULT_REWARD,):
        values = {**dict.fromkeys(awaited), **values}

    def record(name: str, value: float | None, reason: str = "", target: str | None = None) -> Reward:
        return Reward(
            rollout_id=request.rollout_id,
            attempt_id=attempt,
            name=name,
            value=value,
            reason=reason,
            target=target,
            source=source,
            idempotency_key="/".join(filter(None, (request.rollout_id, attempt, name, target))),
            at_ms=int(time.time() * 1000),
        )

    of_calls = (
        record(name, value, target=target)
        for name, own in sorted(grade.calls.items())
        for target, value in sorted(own.items())
    )
    of_whole = (
        record(name, value, "" if value is not None else grade.unscored or f"grader gave no {name!r}")
        for name, value in sorted(values.items())
    )
    return (*of_calls, *of_whole)


def _checked(grade: _Grade, how: Mapping[str, Any]) -> _Grade:
    """The grade, or why it cannot be used: it names what is no call of the attempt, or no rule or number can be so."""
    known = {id_ for call in how["calls"] for id_ in (call["call_id"], *(tool["id"] for tool in call["tool_calls"]))}
    fault = ""
    for name, values in grade.calls.items():
        if name.startswith(AIR_RULE) or name == AGENT_REWARD:
            fault = f"grader rewarded calls as {name!r}, a name that is taken"
        elif strangers := sorted(values.keys() - known):
            fault = f"grader rewarded {strangers[0]!r}, which is no call of the attempt"
        elif not all(map(is_usable, values.values())):
            fault = f"grader returned no number within +-{MAX_REWARD:g} for each call"
    return _Grade(id=grade.id, unscored=fault[:300]) if fault else grade


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
        return rewards_of(_checked(grade, how), request, attempt, source=self._reward.source)

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
