"""The held-out passes of a run, one after the other: before training, every `eval_every` steps, and after it.

    due at its step -> begins, on `weights` -> its rollouts -> all ended -> its score, on `weights` -> the next one

In: the state, a turn at a time. Out: the records of a pass, requests for its rollouts. Invariants: what is due follows
from the records of the passes before and from the settings alone, so that a restart goes on with the same pass, and a
run that is resumed with more steps gets passes for them; training goes on beside a pass as far as to the next one's
step, so that passes never pile up; where training waits for none, as on captured traffic, those that it has overtaken
are left out; a rollout that is lost is left out and holds up no pass. Failure: ConfigurationError when the file of
held-out tasks changed during a pass.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.tasks import Task

from .admission_state import AdmissionState
from .config import PaceConfig, TasksConfig, TasksHandles
from .dataset import read_tasks
from .pace import RunProgress
from .score import score_of

logger = logging.getLogger(__name__)


class DuePass(NamedTuple):
    """A pass that is under way, or the next one."""

    number: int
    step: int
    """The batch after which it is due; 0: before training."""
    first_group: int


def next_step(step: int, every: int, steps: int) -> int:
    """The step after `step` at which a pass is due: the next multiple of `every`, at most the last one; 0: the last."""
    return min((step // every + 1) * every, steps) if every else steps


def next_pass(newest: HeldOutPass | None, every: int, steps: int, *, done: int = 0) -> DuePass | None:
    """The pass that follows the newest one, or that one while it has no score; None: the last one is over.

    From a run's beginning on pass p is that of step min(p * every, steps). Where so many steps are `done` that training
    is beyond the step of the one after it, it is that of the newest step at which one was due.
    """
    if newest is None:
        return DuePass(0, 0, 0)
    if newest.score is None:
        return DuePass(newest.number, newest.step, newest.first_group)
    if newest.step >= steps:
        return None
    step = next_step(newest.step, every, steps)
    if every and done > next_step(step, every, steps):
        step = steps if done >= steps else done // every * every
    return DuePass(newest.number + 1, step, newest.first_group + newest.num_tasks)


def last_step(due: DuePass | None, every: int, steps: int, *, staleness: int) -> int:
    """How far training may go while this pass is the next one: not before the pass before training is over, and not
    beyond the step of the one after it. With eta 0, where no rollout runs ahead of anything, not beyond its own.
    """
    if due is None:
        return steps
    return due.step if due.number == 0 or not staleness else next_step(due.step, every, steps)


class HeldOut:
    """Runs them. Not thread-safe.

    Args:
        ask: asks for the members of the held-out group of this index, task and size that were not asked for.
        tell: appends a record of a pass. Both raise UnavailableError or OverloadedError when the log is away.
        wait: says what is waited for, from time to time.
        num_running: rollouts that may be in the works at once, beside those of training.
    """

    def __init__(
        self,
        config: TasksConfig,
        pace: PaceConfig,
        handles: TasksHandles,
        state: AdmissionState,
        *,
        ask: Callable[[int, Task, int], None],
        tell: Callable[[HeldOutPass], None],
        wait: Callable[[str, str], object],
        num_running: int,
    ) -> None:
        self._every = config.eval_every
        self._num_samples = config.eval_samples
        self._tasks = read_tasks(config.eval_file) if config.eval_file else ()
        self._paces = config.file is not None
        self._staleness = pace.staleness
        self._handles = handles
        self._state = state
        self._ask, self._tell, self._wait = ask, tell, wait
        self._num_running = num_running

    def due(self, done: int) -> DuePass | None:
        """The pass that is under way, or the next one, after so many steps; None: there is none."""
        newest = self._state.held_out.newest
        is_under_way = newest is not None and newest.score is None
        return next_pass(newest, self._every, self._handles.steps, done=done) if self._tasks or is_under_way else None

    def last_step(self, done: int) -> int:
        """How far training may go now."""
        return last_step(self.due(done), self._every, self._handles.steps, staleness=self._staleness)

    def advance(self, progress: RunProgress) -> None:
        """A turn of the pass that is due now, if one is."""
        due, newest = self.due(progress.step), self._state.held_out.newest
        if due is None or progress.acked is None:
            return
        if newest is not None and newest.number == due.number:
            self._run(newest, progress)
            return
        # The last one is of the last version; before it engines may lag behind by eta, as when training is admitted.
        lag = self._staleness if due.step < self._handles.steps else 0
        is_served = due.number == 0 or progress.acked >= progress.version - lag
        if progress.step >= due.step and is_served:
            begun = HeldOutPass(
                policy=self._handles.policy,
                run=RunHash(self._handles.run_hash),
                number=due.number,
                step=due.step,
                since_version=progress.acked,
                first_group=due.first_group,
                num_tasks=len(self._tasks),
                num_samples=self._num_samples,
            )
            self._tell(begun)
            self._run(begun, progress)

    def _run(self, begun: HeldOutPass, progress: RunProgress) -> None:
        if (begun.num_tasks, begun.num_samples) != (len(self._tasks), self._num_samples):
            raise ConfigurationError(
                f"[tasks] eval_file: expected {begun.num_tasks} tasks of {begun.num_samples} samples, with which "
                f"held-out pass {begun.number} began, got {len(self._tasks)} of {self._num_samples}; put them back "
                "until its score is there"
            )
        groups = range(begun.first_group, begun.first_group + begun.num_tasks)
        self._admit(groups)
        found = self._state.held_out_scores()
        scores = [[found.get((group, member)) for member in range(begun.num_samples)] for group in groups]
        known = [[score for score in task if score is not None] for task in scores]
        num_lacking = begun.num_tasks * begun.num_samples - sum(map(len, known))
        if num_lacking:
            is_awaited = 0 < self.last_step(progress.step) <= progress.step < self._handles.steps
            behind = "; training waits for it" if is_awaited and self._paces else ""
            self._wait(f"held-out pass {begun.number}, step {begun.step}", f"{num_lacking} episodes to come{behind}")
            return
        score = score_of(known, begun.num_samples)
        self._tell(replace(begun, score=score))
        excluded = Counter(one.excluded for task in known for one in task if one.reward is None)
        logger.info(
            "held-out pass %d, step %d: mean reward %s over %d tasks, versions %s, without reward: %s",
            begun.number,
            begun.step,
            "-" if score.mean is None else f"{score.mean:.4f}",
            score.num_scored,
            {one.version: round(one.share, 3) for one in score.versions},
            dict(excluded) or "none",
        )

    def _admit(self, groups: range) -> None:
        room = self._num_running - self._state.num_open(Purpose.VALIDATION)
        asked = self._state.admitted[Purpose.VALIDATION]
        for group, task in zip(groups, self._tasks, strict=True):
            if room <= 0:
                return
            if asked.missing(group, self._num_samples):
                self._ask(group, task, self._num_samples)
                room -= self._num_samples
