"""The trainer's loop, from `transitions` to `weights`.

    read       TransitionsSource, OpenBatch   consumes transitions; waits for G new groups (says so, with the lag; on
                                              `training_steps` those that do not count); unblocked by credit
    advantage  Learner.rows, Recipe           returns -> advantages, token weights
    loss       updates, Learner.step, Recipe  of each update: micro-batches, forward, backward
    optimise   Learner.step                   clip, AdamW; or `skipped` with its reason
    conclude   Store.conclude                 checkpoint: from here on the batch is consumed, whatever is killed;
                                              publish, if a version is due: unblocks weight sync; record on
                                              `training_steps`: unblocks tasks, which count consumed groups

At start: load the model, claim an epoch, then load the newest checkpoint (in this order: what an older trainer writes
after the claim is void). A fresh run checkpoints step 0 and publishes version 0. What a resumed run does again, and how
it replays the log from an older checkpoint, is in store/store.py.
Invariant: a batch is consumed by one checkpoint, so no group is trained twice or skipped.
On failure: FencedError, ConfigurationError, LogGapError, UnreadableError, DivergedError end the process for good;
UnavailableError and OSError end it to be restarted, which resumes. By `[alarms] on` an alarm (schemas/alarms.py) ends
it too, or holds it between two steps until it is stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tracegrad.schemas.alarms import NUM_STEPS, alarm_text, alarms_of
from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import ConfigurationError, DivergedError
from tracegrad.schemas.log.protocol import Log, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import ALARMS_BEGUN, GROUPS_TAKEN, PAUSED, Metrics
from tracegrad.schemas.policies import partition_of
from tracegrad.schemas.records.training import TRAINING_STEPS, GroupsGivenBack, StepResult, TrainingStep
from tracegrad.schemas.topics import Topic, Topics

from .algorithm.recipe import Recipe
from .algorithm.trial import try_functions
from .backends.single import SingleLearner
from .batch.batches import Batch, OpenBatch, TransitionsSource
from .batch.forms import in_form
from .batch.groups import GroupLimits
from .batch.rows import TrainingRow, updates
from .batch.told import told_advantages
from .config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from .describe import describe_step, step_line
from .learner import STOPPED
from .model.critic import load_critic
from .model.policy import configure_torch, load_policy
from .step_figures import diverged, warn_of_mismatch
from .store.in_work import InWork
from .store.policy_log import PolicyLog
from .store.store import Store
from .tell import tell_start, tell_step

__all__ = ["Trainer"]

_log = logging.getLogger(__name__)
_POLL_S = 0.25
"""Longest wait for records before the stop event and the epoch are looked at again."""
_WAIT_LOG_S = 30.0
"""A waiting trainer says so, with its lag, this often."""
_TAKEN_EVERY_S = 2.0
"""A trainer that waits looks this often whether all that lies there is read, and tells tasks."""


class Trainer:
    """One policy's training, from its newest checkpoint on; one thread. `ends` closes its readers and its writer."""

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: AlgorithmConfig,
        alarms: AlarmsConfig,
        handles: TrainerHandles,
        *,
        topics: Topics,
        log: Log,
        metrics: Metrics,
        ends: ExitStack,
        stop: threading.Event,
    ) -> None:
        """Resumes or begins: on return the run's present version is announced and its last step recorded."""
        self._config = config
        self._metrics = metrics
        self._alarms = alarms
        device = configure_torch(config, seed=handles.seed)
        self._stop = stop
        self._seed = handles.seed
        recipe = self._recipe(algorithm)
        needs, moves = "reference" in recipe.needs, recipe.kl_to == "moving"
        reference = load_policy(config, handles.model, device, is_trained=moves) if needs else None
        policy = load_policy(config, handles.model, device)
        critic = load_critic(config, recipe, policy)
        given: Any = {"reference": reference, "critic": critic, "is_told_to_stop": stop.is_set}
        self._learner = SingleLearner(policy, config, recipe, **given)
        self._machine = {"seed": str(handles.seed), **self._learner.machine}
        writer = ends.enter_context(closing(log.writer()))
        policy_log = PolicyLog(handles, topics=topics, log=log, writer=writer, metrics=metrics)
        self._policy_log = ends.enter_context(closing(policy_log))
        self._policy_log.claim()
        self._refusals = Refusals(topics, metrics, stops=True)
        self._store = Store(
            config,
            alarms,
            handles,
            learner=self._learner,
            policy_log=self._policy_log,
            refusals=self._refusals,
            is_needed=self._is_needed,
        )
        self._recent = deque(self._store.past_steps, maxlen=NUM_STEPS)
        tell_start(metrics, self._recent, max_staleness=config.max_staleness)
        self._limits = GroupLimits(
            policy=handles.policy, vocabulary=self._learner.vocabulary, max_row_tokens=config.max_row_tokens
        )
        at = TopicPartition(topics.name(Topic.TRANSITIONS), partition_of(handles.policy))
        self._in_work = InWork(Path(handles.work_dir) / "in-work", at)
        source = TransitionsSource(log, at, next_offset=self._store.state.next_offset, poll_s=_POLL_S)
        self._source = ends.enter_context(closing(source))

    def train(self) -> None:
        """The loop."""
        while not self._is_done and not self._stop.is_set():
            started = time.perf_counter()
            started_at_ms = _now_ms()
            self._look()
            batch, read_s = self._read()
            if batch is None or (self._store.state.step == 0 and not self._policy_log.await_score(self._stop)):
                break
            waited = time.perf_counter() - started - read_s
            self._train(batch, seconds={"wait": waited, "read": read_s}, started_at_ms=started_at_ms)
        self._store.save()
        state = self._store.state
        _log.info("trainer stops: policy=%s step=%d version=%d", state.policy, state.step, state.version)

    # what a trainer of history does otherwise (history/)

    def _recipe(self, algorithm: AlgorithmConfig) -> Recipe:
        """Raises ConfigurationError: it, or a function of it, cannot work."""
        try:
            recipe = algorithm.resolve()
            try_functions(recipe)
        except ConfigurationError as error:
            raise ConfigurationError(f"[algorithm] {error}") from error
        return recipe

    @property
    def _is_done(self) -> bool:
        return self._store.state.step >= self._config.steps

    def _is_needed(self, version: int) -> bool:
        """Whether a version's folder is to be kept, however old it is."""
        return False

    def _look(self) -> None:
        """Between two batches."""
        self._store.look()

    def _started_from(self) -> int | None:
        """The version that the next step starts from, for tokens' versions to be compared with; None: none is."""
        return self._store.state.version

    def _is_due(self) -> bool | None:
        """Whether the step in work leads to a version, if it can; None: as `[publish]` has it."""
        return None

    def _sift(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """What the weights of now say of a batch: less of it, and fields of its record."""
        return batch, {}

    def _check(self, record: TrainingStep) -> bool:
        """Before a step is concluded; whether it is known to be as it must be."""
        return False

    # read

    def _open(self, num_groups: int) -> OpenBatch:
        return OpenBatch(
            begin_offset=self._store.state.next_offset,
            num_groups=num_groups,
            consumed=self._store.consumed.keys(),
            limits=self._limits,
            recipe=self._learner.recipe,
            refusals=self._refusals,
        )

    def _read(self) -> tuple[Batch | None, float]:
        """The next batch (None when told to stop) and the seconds spent on judging records."""
        batch = self._open(self._config.groups_per_step)
        busy_s = told_at = 0.0
        num_told, said_at = 0, time.monotonic()
        while not batch.is_complete:
            beat()
            record = self._source.next()
            if record is not None:
                self._metrics.clear(GROUPS_TAKEN)
                began = time.perf_counter()
                with self._in_work.reading(record):
                    batch.add(record)
                busy_s += time.perf_counter() - began
                continue
            if self._stop.is_set():
                return None, busy_s
            self._store.look()
            if len(batch.given_back) > num_told:
                num_told = self._give_back(batch)
            if time.monotonic() - told_at >= _TAKEN_EVERY_S:
                told_at = time.monotonic()
                self._tell_taken(batch)
            if time.monotonic() - said_at >= _WAIT_LOG_S:
                said_at = time.monotonic()
                _log.info(
                    "waiting for groups: policy=%s step=%d has %d of %d, lag=%s records",
                    self._store.state.policy,
                    self._store.state.step + 1,
                    batch.num_counted,
                    self._config.groups_per_step,
                    self._source.lag,
                )
        return self._close(batch), busy_s

    def _close(self, batch: OpenBatch) -> Batch:
        # A rollback while it waited: the step starts from the version of now.
        state = self._store.state
        if batch.num_counted < batch.num_groups:
            _log.warning(
                "step %d: %d groups of %d have spread, and [algorithm] refill lets a batch take no more than these",
                state.step + 1,
                batch.num_counted,
                batch.num_seen,
            )
        return batch.close(run=state.run, version=state.version, max_staleness=self._config.max_staleness)

    def _give_back(self, batch: OpenBatch) -> int:
        """Says which groups do not count, or tasks would wait for a batch that waits for others; how many there are."""
        state, given_back = self._store.state, tuple(batch.given_back)
        record = GroupsGivenBack(
            run=state.run,
            policy=state.policy,
            epoch=self._policy_log.epoch,
            step=state.step + 1,
            consumed=state.accounting.consumed + len(given_back),
            group_ids=given_back,
        )
        self._policy_log.training_step(TRAINING_STEPS.encode(record))
        return len(given_back)

    def _tell_taken(self, batch: OpenBatch) -> None:
        """By this tasks knows of groups that closed and never came: nothing else would end the wait for them."""
        self._metrics.clear(GROUPS_TAKEN)
        if self._source.lag == 0:
            self._metrics.set(GROUPS_TAKEN, self._store.state.accounting.consumed + batch.num_seen)

    # advantage, loss, optimise, conclude

    def _train(self, batch: Batch, *, seconds: dict[str, float], started_at_ms: int) -> None:
        before, started_from = self._store.state, self._started_from()
        with self._in_work.step(batch):
            batch, sifted = self._sift(batch)
            rows, result, running = self._learn(batch)
        if result.skipped == STOPPED:
            return  # nothing is consumed: the next start takes the same step
        version, num_unpublished = self._store.version_after(batch, is_updated=result.is_updated, is_due=self._is_due())
        if not result.is_updated:
            batch, rows = batch.as_untrained(result.skipped), []
        record = describe_step(
            before,
            epoch=self._policy_log.epoch,
            started_from=started_from,
            version=version,
            num_unpublished=num_unpublished,
            batch=batch,
            rows=rows,
            result=result,
            seconds=seconds,
            machine=self._machine,
            started_at_ms=started_at_ms,
            ended_at_ms=_now_ms(),
        )
        record = replace(record, **sifted)
        record = replace(record, alarms=alarms_of([*self._recent, record]))
        is_expected = self._check(record)
        self._policy_log.check()
        formed = in_form(batch.groups, self._learner.recipe.rows, max_row_tokens=self._config.max_row_tokens)
        self._policy_log.advantages(record, told_advantages(formed, rows))
        record = self._store.conclude(batch, record, running)
        begun = sorted({*record.alarms} - {*(self._recent[-1].alarms if self._recent else ())})
        self._recent.append(record)
        self._say(record, before.version)
        if record.skipped == "non_finite" and not is_expected:
            self._store.save()
            raise diverged(record, before.version)
        for alarm in begun:
            self._metrics.add(ALARMS_BEGUN, alarm)
            _log.warning("alarm %s at step %d: %s", alarm, record.step, alarm_text(alarm, [*self._recent]))
        if begun and self._alarms.on != "warn" and record.step < self._config.steps:
            self._store.save()
            self._hold(begun, record)

    def _learn(self, batch: Batch) -> tuple[list[TrainingRow], StepResult, dict[str, float]]:
        """The rows, what the step did, and the running means after it."""
        state, step = self._store.state, self._store.state.step + 1
        rows, running = self._learner.rows(batch.groups, state.running)
        parts = updates(rows, batch.groups, self._learner.recipe, seed=f"{self._seed}/{step}")
        # Between two versions the weights are none's: what the newest sampled differs from theirs by learning.
        version = None if state.num_unpublished else self._started_from()
        return rows, self._learner.step(*parts, version=-1 if version is None else version, step=step), running

    # tell

    def _hold(self, begun: Sequence[str], record: TrainingStep) -> None:
        """For alarms that did not hold at the step before: else a run that is started again would end again at once."""
        if self._alarms.on == "stop":
            raise DivergedError(
                f"expected no alarm, got {', '.join(begun)} at step {record.step}, which is kept; docs/watching.md "
                "says what each means. Start the run again, which goes on; [alarms] on = 'warn' only tells"
            )
        _log.warning("paused after step %d: nothing is trained until the run is stopped and started again", record.step)
        self._metrics.set(PAUSED, record.step)
        while not self._stop.wait(_POLL_S):
            beat()
            self._store.look()

    def _say(self, record: TrainingStep, before: int) -> None:
        tell_step(self._metrics, record)
        _log.info("%s", step_line(record))
        # Of concatenated rows it is their contexts that differ.
        if self._learner.recipe.rows != "concatenated":
            warn_of_mismatch(record, before, self._learner.settings["publish_dtype"])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
