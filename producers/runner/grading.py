"""Asks the user's grader, in processes of its own, and tells a score from every way not to get one.

In: a task, an output, how the attempt went. Out: a Grade. Invariant: one judgement never takes longer than
`grade_timeout_s` plus a restart; a grader that raises, hangs, dies or answers nonsense leaves the attempt unscored
with the reason. Failure: ConfigurationError when the grader cannot be imported.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import msgspec

from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.records.rollouts import Reward, RolloutRequest

from .children import Child, Reaper, start_host
from .config import RunnerConfig

__all__ = ["Grade", "Graders", "rewards_of"]

DEFAULT_REWARD = "reward"

logger = logging.getLogger(__name__)


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """What the grader said; `unscored` tells why a value is None."""

    rewards: dict[str, float | None] = {}
    unscored: str = ""


def rewards_of(grade: Grade, request: RolloutRequest, attempt: str, *, source: str, at_ms: int) -> tuple[Reward, ...]:
    """The records of a grade: a value or a reason for each name given and each name awaited.

    A grader that returns other names than the default one replaces it, so that nobody waits for `reward`.
    """
    values = dict(grade.rewards)
    awaited = request.rewards_awaited or (DEFAULT_REWARD,)
    if not values or awaited != (DEFAULT_REWARD,):
        values = {**dict.fromkeys(awaited), **values}
    return tuple(
        Reward(
            rollout_id=request.rollout_id,
            attempt_id=attempt,
            name=name,
            value=value,
            reason="" if value is not None else grade.unscored or f"grader gave no {name!r}",
            source=source,
            idempotency_key=f"{request.rollout_id}/{attempt}/{name}",
            at_ms=at_ms,
        )
        for name, value in sorted(values.items())
    )


class Graders:
    """A few grader processes; each judges one attempt at a time. Use from one event loop."""

    def __init__(self, config: RunnerConfig, reaper: Reaper) -> None:
        assert config.grader is not None
        self._config = config
        self._reaper = reaper
        self._idle: asyncio.LifoQueue[Child | None] = asyncio.LifoQueue()
        self._children: set[Child] = set()
        for _ in range(config.graders):
            self._idle.put_nowait(None)
        self.source = f"grader:{config.grader.rpartition(':')[2]}"

    async def start(self) -> None:
        """Starts one process, so that a grader that cannot be imported is known before the first rollout."""
        await self._idle.get()
        self._idle.put_nowait(await self._start())

    async def _start(self) -> Child:
        config, grader = self._config, str(self._config.grader)
        env = {**os.environ, **config.env}
        try:
            child, _ = await start_host("grader_host.py", grader, config, self._reaper, env=env, name="grader")
        except (ConfigurationError, UnavailableError) as error:
            raise ConfigurationError(f"[reward] grader {error}") from error
        self._children.add(child)
        return child

    async def grade(self, request: RolloutRequest, output: Any, attempt: dict[str, Any]) -> Grade:
        """One judgement. Waits for an idle process."""
        child = await self._idle.get()
        keep: Child | None = None
        try:
            child = child or await self._start()
            task = {"id": request.task_id, "input": request.input, "expected": request.expected}
            question = {"id": request.rollout_id, "task": task, "output": output, "attempt": attempt}
            answer = await asyncio.wait_for(_ask(child, question), self._config.grade_timeout_s)
            if answer is None or answer.get("id") != request.rollout_id:
                return Grade(unscored="grader process died")
            keep = child
            return Grade(rewards=answer.get("rewards", {}), unscored=answer.get("unscored", ""))
        except TimeoutError:
            return Grade(unscored=f"grader took more than {self._config.grade_timeout_s:g} s")
        except ConnectionError:
            return Grade(unscored="grader process died")
        except RecursionError:
            return Grade(unscored="the output is nested too deep for the grader")
        except (ConfigurationError, OSError) as error:  # it worked at the start of this runner
            return Grade(unscored=f"grader cannot be restarted: {error}"[:300])
        finally:
            if child is not None and keep is None:
                await self._kill(child)
            self._idle.put_nowait(keep)

    async def _kill(self, child: Child) -> None:
        status = await child.kill()
        self._children.discard(child)
        logger.warning("grader process ended (exit status %d); the next attempt gets a new one", status)

    async def close(self) -> None:
        """Kills all grader processes."""
        for child in list(self._children):
            await child.kill()


async def _ask(child: Child, question: dict[str, Any]) -> dict[str, Any] | None:
    await child.send(question)
    return await child.receive()
