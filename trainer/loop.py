"""The trainer's loop, from `transitions` to `weights`.

    read       Source.read                    consumes transitions; waits for G new groups (says so, with the lag; on
                                              `training_steps` those that do not count); unblocked by credit
    advantage  Learner.rows, Recipe           returns -> advantages, token weights
    loss       updates, Learner.step, Recipe  of each update: micro-batches, forward, backward
    optimise   Learner.step                   clip, AdamW; or `skipped` with its reason
    conclude   Store.conclude                 checkpoint: from here on the batch is consumed, whatever is killed;
                                              publish, if a version is due: unblocks weight sync; record on
                                              `training_steps`: unblocks tasks, which count consumed groups; files are
                                              written while the next step computes, where that pays (store.py)
    roll back  Rollbacks                      what people ask for on `weights`, and what the ratings call for

What it is made of, and the start of it, is in run.py and store/resume.py.
Invariant: a batch is consumed by one checkpoint, so no group is trained twice or skipped.
On failure: FencedError, ConfigurationError, LogGapError, UnreadableError, DivergedError end the process for good;
UnavailableError and OSError end it to be restarted, which resumes. By `[alarms] on` an alarm (schemas/alarms/) ends
it too, or holds it between two steps until it is stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tracegrad.schemas.alarms import NUM_STEPS, alarm_text, alarms_of
from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import DivergedError
from tracegrad.schemas.metrics import ALARMS_BEGUN, PAUSED, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.training import StepResult, TrainingStep

from .algorithm.recipe import Recipe
from .batch.batches import Batch
from .batch.groups import in_form
from .batch.rows import TrainingRow, updates
from .config import AlarmsConfig, Waits
from .describe import describe_advantages, describe_step, step_line
from .learner import STOPPED
from .step_figures import diverged, show_start, show_step, warn_of_mismatch
from .store.checkpoint import CheckpointState
from .store.store import Rollbacks, Store
from .store.work_marks import WorkMarks

_log = logging.getLogger(__name__)


@dataclass
class Trainer:
    """One policy's training, from where its store stands; one thread."""

    store: Store
    rollbacks: Rollbacks
    past_steps: Sequence[TrainingStep]
    """Those before the next one that this run recorded."""
    alarms: AlarmsConfig
    recipe: Recipe
    seed: int
    marks: WorkMarks
    metrics: Metrics
    stop: threading.Event
    waits: Waits

    def __post_init__(self) -> None:
        versions = self.store.versions
        self.config, self.learner, self.source = versions.config, versions.learner, versions.source
        self.policy_log = versions.policy_log
        self._recent = deque(self.past_steps, maxlen=NUM_STEPS)
        show_start(self.metrics, self._recent, max_staleness=self.config.max_staleness)
        self.source.observe(self.state)

    @property
    def state(self) -> CheckpointState:
        """Where training stands."""
        return self.store.state

    def train(self) -> None:
        """The loop."""
        while not self._is_done and not self.stop.is_set():
            started = time.perf_counter()
            started_at_ms = _now_ms()
            self.store.finish(waits=False)
            self.rollbacks.look()
            for to_version in self.source.rollbacks(self.state):
                self.rollbacks.go_back(to_version)
                self.source.observe(self.state)
            batch = self.source.read(self.store.progress, self._look)
            if batch is None or (self.state.step == 0 and not self.policy_log.await_score(self.stop)):
                break
            self._train(batch, wait_s=time.perf_counter() - started - batch.read_s, started_at_ms=started_at_ms)
        self.store.save()
        state = self.state
        _log.info("trainer stops: policy=%s step=%d version=%d", state.policy, state.step, state.version)

    def _look(self) -> None:
        """There is nothing to train on: what was stored is told, for it may be what everybody waits for."""
        self.store.finish()
        self.rollbacks.look()

    @property
    def _is_done(self) -> bool:
        state = self.state
        return self.source.is_last(state.step, state.next_offset) and not self.source.rollbacks(state)

    def _train(self, batch: Batch, *, wait_s: float, started_at_ms: int) -> None:
        before = self.state
        with self.marks.step(batch):
            batch, sifted = self.source.sift(batch)
            rows, result, running = self._learn(batch)
        if result.skipped == STOPPED:
            return  # nothing is consumed: the next start takes the same step
        version, num_unpublished = self.store.versions.after(batch, is_updated=result.is_updated)
        if not result.is_updated:
            batch, rows = batch.without(batch.group_ids, result.skipped), []
        record = describe_step(
            before,
            version=version,
            num_unpublished=num_unpublished,
            batch=batch,
            rows=rows,
            result=result,
            seconds={"wait": wait_s},
            machine={"seed": str(self.seed), **self.learner.machine},
            started_at_ms=started_at_ms,
            ended_at_ms=_now_ms(),
        )
        record = replace(record, **sifted)
        record = replace(record, alarms=alarms_of([*self._recent, record]))
        is_expected = self.source.check(record)
        self.policy_log.check()
        formed = in_form(batch.groups, self.recipe.rows, max_row_tokens=self.config.max_row_tokens)
        self.policy_log.advantages(record, describe_advantages(formed, rows))
        record = self.store.conclude(batch, record, running)
        self.rollbacks.ask_where_worse(record)
        begun = sorted({*record.alarms} - {*(self._recent[-1].alarms if self._recent else ())})
        self._recent.append(record)
        self._say(record, before.version)
        if record.skipped == Reason.NON_FINITE and not is_expected:
            self.store.save()
            raise diverged(record, before.version)
        for alarm in begun:
            self.metrics.add(ALARMS_BEGUN, alarm)
            _log.warning("alarm %s at step %d: %s", alarm, record.step, alarm_text(alarm, [*self._recent]))
        if begun and self.alarms.on in ("pause", "stop") and record.step < self.config.steps:
            self.store.save()
            self._hold(begun, record)

    def _learn(self, batch: Batch) -> tuple[list[TrainingRow], StepResult, dict[str, float]]:
        """The rows, what the step did, and the running means after it."""
        state, step = self.state, self.state.step + 1
        rows, running = self.learner.rows(batch.groups, state.running)
        parts = updates(rows, batch.groups, self.recipe, seed=f"{self.seed}/{step}")
        # Between two versions the weights are none's: what the newest sampled differs from theirs by learning.
        version = None if state.num_unpublished else batch.started_from
        return rows, self.learner.step(*parts, version=-1 if version is None else version, step=step), running

    def _hold(self, begun: Sequence[str], record: TrainingStep) -> None:
        """For alarms that did not hold at the step before: else a run that is started again would end again at once."""
        if self.alarms.on == "stop":
            raise DivergedError(
                f"expected no alarm, got {', '.join(begun)} at step {record.step}, which is kept; docs/watching.md "
                "says what each means. Start the run again, which goes on; [alarms] on = 'warn' only tells"
            )
        _log.warning("paused after step %d: nothing is trained until the run is stopped and started again", record.step)
        self.metrics.set(PAUSED, record.step)
        while not self.stop.wait(self.waits.poll_s):
            beat()
            self.rollbacks.look()

    def _say(self, record: TrainingStep, before: int) -> None:
        show_step(self.metrics, record)
        _log.info("%s", step_line(record))
        # Of concatenated rows it is their contexts that differ.
        if self.recipe.rows != "concatenated":
            warn_of_mismatch(record, before, self.learner.settings["publish_dtype"])
        self.source.observe(self.state)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
