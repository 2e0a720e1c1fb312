"""The trainer's loop, from `transitions` to `weights`.

    read       TransitionsSource, OpenBatch   consumes transitions; waits for G new groups (says so, with the lag);
                                              unblocked by credit. Dead letters are acknowledged here.
    advantage  training_rows, Recipe          returns -> advantages, token weights
    loss       Learner.step, Recipe           micro-batches, forward, backward
    optimise   Learner.step                   clip, AdamW; or `skipped` with its reason
    checkpoint Checkpoints.save               one rename; from here on the batch is consumed, whatever is killed. Every
                                              `checkpoint_every`th step; those between are replayed after a kill
    publish    Publisher, PolicyLog.announce  folder, then manifest on `weights`; unblocks weight sync
    record     training_steps                 unblocks tasks (admission counts consumed groups)

At start: load the model, claim an epoch, then load the newest checkpoint (in this order: what an older trainer writes
after the claim is void). A fresh run checkpoints step 0 and publishes version 0. A resumed run publishes its version
again, under the new epoch, if no surviving manifest names it, and emits its training_step again if it is missing,
byte for byte; that is why the record's `checkpoint` and `publish` seconds are those of the step before. Resumed from
an older checkpoint it replays the log: a number that is published already is announced again if the weights are equal,
else training goes on above the newest number, so that no number ever has two contents.
Invariant: what was consumed, the weights and the offset are one checkpoint, so no group is trained twice or skipped.
On failure: FencedError and ConfigurationError, LogGapError, DivergedError end the process for good; UnavailableError
and OSError end it to be restarted, which resumes.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import torch

from tracegrad.schemas.errors import DivergedError
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.metrics import GROUPS_EXCLUDED, GROUPS_TRAINED, STEPS, Metrics
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.versions import Version
from tracegrad.schemas.records.weights import RollbackRequest
from tracegrad.schemas.topics import Topic, Topics

from .batch.batches import Batch, OpenBatch, TransitionsSource
from .batch.groups import GroupLimits
from .batch.rows import TrainingRow, training_rows
from .config import TrainerConfig, TrainerHandles
from .describe import describe_step
from .model.policy import configure_torch, load_policy
from .step import Learner, StepResult
from .store.checkpoint import Checkpoints, resume
from .store.policy_log import PolicyLog
from .store.publish import Publisher

__all__ = ["Trainer", "run"]

_log = logging.getLogger(__name__)
_POLL_S = 0.25
"""Longest wait for records before the stop event and the epoch are looked at again."""
_PARTITION = 0
"""Of `transitions`: a policy's index in the run's policies, of which a run has one."""
_WAIT_LOG_S = 30.0
"""A waiting trainer says so, with its lag, this often."""
_LOGPROB_ERROR_WARN = 0.1
"""Nats between trainer and sampler, same version, beyond which a warning is logged (stale or wrong weights)."""
_COARSE_LOGPROB_ERROR_WARN = 1.0
"""The same where bfloat16 is published: its rounding alone gave 0.26."""


def run(
    config: TrainerConfig,
    handles: TrainerHandles,
    *,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
) -> None:
    """Trains until `steps` batches are done or `stop` is set; blocking.

    Raises:
        FencedError: another trainer claimed the policy.
        DivergedError: loss, gradients or logits are no numbers any more.
        ConfigurationError, LogGapError: a person must act.
        UnavailableError, OSError: a restart may cure it.
    """
    with ExitStack() as ends:
        Trainer(config, handles, topics=topics, log=log, metrics=metrics, ends=ends).train(stop)


class Trainer:
    """One policy's training, from its newest checkpoint on; one thread. `ends` closes its readers and its writer."""

    def __init__(
        self,
        config: TrainerConfig,
        handles: TrainerHandles,
        *,
        topics: Topics,
        log: Log,
        metrics: Metrics,
        ends: ExitStack,
    ) -> None:
        """Resumes or begins: on return the run's present version is announced and its last step recorded."""
        self._config = config
        self._metrics = metrics
        device = configure_torch(config, seed=handles.seed)
        self._learner = Learner(load_policy(config, handles.model, device), config)
        writer = ends.enter_context(closing(log.writer()))
        policy_log = PolicyLog(handles, topics=topics, log=log, writer=writer, metrics=metrics)
        self._policy_log = ends.enter_context(closing(policy_log))
        self._policy_log.claim()
        self._checkpoints = Checkpoints(Path(handles.work_dir) / "checkpoints", keep=config.keep_checkpoints)
        self._publisher = Publisher(handles, keep=config.keep_versions)
        self._limits = GroupLimits(
            policy=handles.policy, vocabulary=self._learner.policy.vocabulary, max_row_tokens=config.max_row_tokens
        )
        self._progress = resume(handles, self._checkpoints, lineage=self._policy_log.lineage, learner=self._learner)
        self._is_saved = bool(self._progress.state.files)
        self._begin()
        source = TransitionsSource(
            log,
            topic=topics.name(Topic.TRANSITIONS),
            partition=_PARTITION,
            next_offset=self._progress.state.next_offset,
            poll_s=_POLL_S,
        )
        self._source = ends.enter_context(closing(source))

    def train(self, stop: threading.Event) -> None:
        """The loop."""
        while self._progress.state.step < self._config.steps and not stop.is_set():
            started = time.perf_counter()
            started_at_ms = _now_ms()
            self._look()
            batch, read_s = self._read(stop)
            if batch is None:
                break
            waited = time.perf_counter() - started - read_s
            self._train(batch, seconds={"wait": waited, "read": read_s}, started_at_ms=started_at_ms)
        self._save()
        state = self._progress.state
        _log.info("trainer stops: policy=%s step=%d version=%d", state.policy, state.step, state.version)

    # read

    def _read(self, stop: threading.Event) -> tuple[Batch | None, float]:
        """The next batch (None when told to stop) and the seconds spent on judging records."""
        config, state = self._config, self._progress.state
        batch = OpenBatch(
            begin_offset=state.next_offset,
            num_groups=config.groups_per_step,
            consumed=self._progress.consumed.keys(),
            limits=self._limits,
        )
        busy_s = 0.0
        said_at = time.monotonic()
        while not batch.is_complete:
            record = self._source.next()
            if record is not None:
                began = time.perf_counter()
                batch.add(record)
                busy_s += time.perf_counter() - began
                continue
            if stop.is_set():
                return None, busy_s
            self._look()
            if time.monotonic() - said_at >= _WAIT_LOG_S:
                said_at = time.monotonic()
                _log.info(
                    "waiting for groups: policy=%s step=%d has %d of %d, lag=%s records",
                    state.policy,
                    state.step + 1,
                    batch.num_seen,
                    config.groups_per_step,
                    self._source.lag,
                )
        max_staleness = config.max_staleness
        return batch.close(run=state.run, version=state.version, max_staleness=max_staleness), busy_s

    # advantage, loss, optimise

    def _train(self, batch: Batch, *, seconds: dict[str, float], started_at_ms: int) -> None:
        self._policy_log.dead_letter(batch.dead)
        before = self._progress.state
        rows, result = self._learn(batch)
        if not result.is_updated:
            batch, rows = batch.as_untrained(result.skipped), []
        record = describe_step(
            before,
            epoch=self._policy_log.epoch,
            version=self._next_version() if result.is_updated else before.version,
            batch=batch,
            rows=rows,
            result=result,
            seconds=seconds,
            started_at_ms=started_at_ms,
            ended_at_ms=_now_ms(),
        )
        self._policy_log.check()
        self._conclude(batch, record)
        self._count(record)
        self._say(record, before.version)
        if record.skipped == "non_finite":
            self._save()
            raise DivergedError(
                f"expected a finite loss and gradient, got others at step {record.step} (version {before.version}, "
                f"offsets [{record.begin_offset}, {record.next_offset}) of `transitions`); nothing was trained on it. "
                "Lower [trainer] lr, roll back, or start the run again, which goes on after this batch"
            )

    def _learn(self, batch: Batch) -> tuple[list[TrainingRow], StepResult]:
        state = self._progress.state
        rows = training_rows(batch.groups, self._learner.recipe)
        return rows, self._learner.step(rows, version=state.version, step=state.step + 1)

    # checkpoint, publish, record

    def _conclude(self, batch: Batch, record: TrainingStep) -> None:
        before = self._progress.state
        encoded = TRAINING_STEPS.encode(record)
        began = time.perf_counter()
        self._progress.consumed.update(dict.fromkeys(batch.consumed))
        self._progress.training_step = encoded
        self._advance(
            step=record.step,
            version=record.version,
            base_version=before.version if record.is_updated else before.base_version,
            next_offset=batch.next_offset,
            accounting=record.accounting,
        )
        if record.step % self._config.checkpoint_every == 0 or record.step >= self._config.steps:
            self._save()
        saved = time.perf_counter()
        if record.is_updated:
            self._publish()
        self._policy_log.training_step(encoded)
        seconds = {"checkpoint": saved - began, "publish": time.perf_counter() - saved}
        self._progress.state = msgspec.structs.replace(self._progress.state, seconds=seconds)

    def _advance(self, **changes: Any) -> None:
        """To the state with these changes and this epoch, which is not checkpointed yet."""
        progress = self._progress
        progress.state = msgspec.structs.replace(progress.state, epoch=self._policy_log.epoch, **changes)
        self._is_saved = False

    def _save(self) -> None:
        """Checkpoints what is there, unless it is."""
        if self._is_saved:
            return
        self._checkpoints.save(self._progress, self._learner.tensors())
        self._is_saved = True

    def _next_version(self) -> int:
        """The number of the present weights, which just changed: engines must know no other content under it."""
        version, lineage = self._progress.state.version + 1, self._policy_log.lineage
        if lineage.newest is None or lineage.newest.version < version:
            return version
        published = lineage.versions.get(version)
        if published is not None and self._publisher.is_content(self._learner.policy, published):
            return version
        above = lineage.newest.version + 1
        _log.warning("replay: version %d was published with other weights; goes on as version %d", version, above)
        return above

    def _publish(self) -> None:
        """Publishes the present weights, which the newest checkpoint holds or a replay gives, under this epoch."""
        state = self._progress.state
        manifest = self._publisher.write(
            self._learner.policy,
            Version(run=state.run, version=state.version, epoch=self._policy_log.epoch),
            base_version=state.base_version,
            step=state.step,
            next_offset=state.next_offset,
            metrics=self._progress.metrics,
        )
        self._policy_log.announce(manifest)

    # begin, roll back

    def _begin(self) -> None:
        """Does what the trainer before had not done when it ended; all of it where there was none."""
        if not self._is_saved:
            self._advance()
            self._save()
        if self._progress.state.version not in self._policy_log.lineage.versions:
            self._publish()
        if self._progress.training_step is not None:
            self._policy_log.training_step_if_missing(self._progress.training_step)

    def _look(self) -> None:
        """Stops when another trainer owns the policy; serves what people asked for."""
        self._policy_log.look()
        while (found := self._policy_log.next_request(self._progress.state.weights_offset)) is not None:
            self._roll_back(*found)

    def _roll_back(self, offset: int, request: RollbackRequest) -> None:
        """Old content under a new number: versions only grow. The optimiser's moments belong to other weights."""
        self._progress.state = msgspec.structs.replace(self._progress.state, weights_offset=offset + 1)
        manifest = self._policy_log.lineage.versions.get(request.to_version)
        try:
            if manifest is None:
                raise FileNotFoundError(f"version {request.to_version} was never published")
            self._publisher.recall(self._learner.policy, manifest)
        except (OSError, ValueError) as error:
            _log.warning("rollback to version %d refused: %s", request.to_version, str(error)[:300])
            return
        self._learner.forget_moments()
        version = self._next_version()
        self._advance(version=version, base_version=request.to_version)
        self._save()
        self._publish()
        _log.info("rolled back: version %d has the content of version %d", version, request.to_version)

    def _count(self, record: TrainingStep) -> None:
        self._metrics.add(STEPS)
        self._metrics.add(GROUPS_TRAINED, num=len(record.group_ids))
        for reason in record.excluded_ids.values():
            self._metrics.add(GROUPS_EXCLUDED, reason)

    def _say(self, record: TrainingStep, before: int) -> None:
        told = msgspec.structs.asdict(record) | {
            "reward": "none" if record.reward is None else f"{record.reward:.3f}",
            "groups": len(record.group_ids),
            "excluded": sorted(set(record.excluded_ids.values())),
            "seconds": {phase: round(value, 3) for phase, value in record.seconds.items()},
            "skipped": f" skipped={record.skipped}" if record.skipped else "",
        }
        _log.info(
            "step=%(step)d version=%(version)d epoch=%(epoch)d reward=%(reward)s groups=%(groups)d "
            "excluded=%(excluded)s tokens=%(num_tokens)d loss=%(loss).5f grad_norm=%(grad_norm).3f "
            "staleness=%(staleness_mean).2f logprob_error=%(logprob_error_max).1e seconds=%(seconds)s%(skipped)s",
            told,
        )
        is_exact = self._learner.policy.dtype == torch.float32
        bound = _LOGPROB_ERROR_WARN if is_exact else _COARSE_LOGPROB_ERROR_WARN
        if record.logprob_error_max > bound:
            _log.warning(
                "version %d: sampler and trainer differ by %.3f nats over %d tokens; the engine serves other weights, "
                "or samples otherwise than it reports",
                before,
                record.logprob_error_max,
                record.num_checked_tokens,
            )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
