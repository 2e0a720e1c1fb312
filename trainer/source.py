"""Where a trainer's batches come from, and what is due by it; the source of a run that grows.

    LiveSource        waits for G new groups on `transitions`, and tells tasks what it waits with
    HistorySource     what lies there, `offline` or by `filter`: history/offline.py
    SameSource        the steps of another run, by its record: history/same.py

In: records of the policy's partition, one by one. Out: batches. Invariant: a source changes no weights and keeps no
state that a checkpoint does not have: what it gives follows from where training stands. Failure: LogGapError,
ConfigurationError, UnreadableError end the process for good.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import LogGapError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import GROUPS_TAKEN, Metrics
from tracegrad.schemas.records.training import TRAINING_STEPS, GroupsGivenBack, TrainingStep

from .algorithm.recipe import Recipe
from .batch.batches import Batch, OpenBatch, TransitionsReader
from .batch.groups import GroupLimits
from .config import WAITS, TrainerConfig, Waits
from .store.checkpoint import CheckpointState, Progress
from .store.policy_log import PolicyLog
from .store.work_marks import WorkMarks

_log = logging.getLogger(__name__)


class Source(ABC):
    """What one policy is trained on: a run that grows, unless one says otherwise. One thread."""

    is_repeat = False
    """Whether each version is one of another run's."""

    @abstractmethod
    def read(self, progress: Progress, look: Callable[[], None]) -> Batch | None:
        """The next batch; None: told to stop, or there is none. While it waits it calls `look`."""

    @abstractmethod
    def is_last(self, step: int, next_offset: int) -> bool:
        """Whether no batch follows the one of this number, up to this offset."""

    def is_due(self, state: CheckpointState) -> bool | None:
        """Whether the next step leads to a version, if it can; None: as `[publish]` has it."""
        return None

    def is_needed(self, version: int) -> bool:
        """Whether a version's folder is to be kept, however old it is."""
        return False

    def rollbacks(self, state: CheckpointState) -> Sequence[int]:
        """The versions to go back to, in turn, before the next batch."""
        return ()

    def sift(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """What the weights of now say of a batch: less of it, and fields of its record."""
        return batch, {}

    def check(self, record: TrainingStep) -> bool:
        """Before a step is concluded; whether it is known to be as it must be."""
        return False

    def observe(self, state: CheckpointState) -> None:  # noqa: B027 - most have nothing to look at
        """At the start, and after each step and rollback."""


@dataclass
class BatchReader:
    """Reads records of the policy's partition into batches."""

    reader: TransitionsReader
    marks: WorkMarks
    limits: GroupLimits
    recipe: Recipe
    refusals: Refusals
    stop: threading.Event

    def open(self, progress: Progress, num_groups: int) -> OpenBatch:
        """The batch that begins where training stands."""
        return OpenBatch(
            begin_offset=progress.state.next_offset,
            num_groups=num_groups,
            consumed=progress.consumed.keys(),
            limits=self.limits,
            recipe=self.recipe,
            refusals=self.refusals,
        )

    def add_record(self, batch: OpenBatch, record: Record) -> None:
        """`OpenBatch.add_record`, marked on disk and timed."""
        began = time.perf_counter()
        with self.marks.reading(record):
            batch.add_record(record)
        batch.read_s += time.perf_counter() - began

    def next_before(self, end_offset: int, look: Callable[[], None]) -> Record | None:
        """The next record of a history, which lies there; None when told to stop."""
        while not self.stop.is_set():
            beat()
            if (record := self.reader.next()) is not None:
                return record
            look()
            if self.reader.lag == 0:
                raise LogGapError(
                    f"expected a history up to offset {end_offset} of `transitions`, got fewer records: "
                    "the replay that wrote it did not end; start it again"
                )
        return None


@dataclass
class LiveSource(Source):
    """`transitions` that grow. `waits`: how often it looks, says so and tells tasks."""

    config: TrainerConfig
    reader: BatchReader
    policy_log: PolicyLog
    metrics: Metrics
    waits: Waits = WAITS

    def is_last(self, step: int, next_offset: int) -> bool:
        return step >= self.config.steps

    def read(self, progress: Progress, look: Callable[[], None]) -> Batch | None:
        batch = self.reader.open(progress, self.config.groups_per_step)
        num_told, told_at, said_at = 0, 0.0, time.monotonic()
        while not batch.is_complete:
            beat()
            record = self.reader.reader.next()
            if record is not None:
                self.metrics.clear(GROUPS_TAKEN)
                self.reader.add_record(batch, record)
                continue
            if self.reader.stop.is_set():
                return None
            look()
            if len(batch.given_back) > num_told:
                num_told = self._give_back(batch, progress.state)
            if time.monotonic() - told_at >= self.waits.taken_s:
                told_at = time.monotonic()
                self._tell_taken(batch, progress.state)
            if time.monotonic() - said_at >= self.waits.log_s:
                said_at = time.monotonic()
                _log.info(
                    "waiting for groups: policy=%s step=%d has %d of %d, lag=%s records",
                    progress.state.policy,
                    progress.state.step + 1,
                    batch.num_counted,
                    batch.num_groups,
                    self.reader.reader.lag,
                )
        # A rollback while it waited: the step starts from the version of now.
        state = progress.state
        if batch.num_counted < batch.num_groups:
            _log.warning(
                "step %d: %d groups of %d have spread, and [algorithm] refill lets a batch take no more than these",
                state.step + 1,
                batch.num_counted,
                batch.num_seen,
            )
        return batch.close(
            run=state.run,
            version=state.version,
            max_staleness=self.config.max_staleness,
            manifests={**self.policy_log.lineage.versions, **progress.unannounced},
        )

    def _give_back(self, batch: OpenBatch, state: CheckpointState) -> int:
        """Says which groups do not count, or tasks would wait for a batch that waits for others; how many there are."""
        given_back = tuple(batch.given_back)
        record = GroupsGivenBack(
            run=state.run,
            policy=state.policy,
            epoch=state.epoch,
            step=state.step + 1,
            consumed=state.accounting.consumed + len(given_back),
            group_ids=given_back,
        )
        self.policy_log.training_step(TRAINING_STEPS.encode(record))
        return len(given_back)

    def _tell_taken(self, batch: OpenBatch, state: CheckpointState) -> None:
        """By this tasks knows of groups that closed and never came: nothing else would end the wait for them."""
        self.metrics.clear(GROUPS_TAKEN)
        if self.reader.reader.lag == 0:
            self.metrics.set(GROUPS_TAKEN, state.accounting.consumed + batch.num_seen)
