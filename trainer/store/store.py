"""A batch is concluded: checkpoint, version, record, in this order.

    checkpoint   every `checkpoint_every` steps, unless it ends with undecodable records: dead letters, then one rename
    version      where the step led to one: `[publish] every` updates, the last batch, or as a replay has it
    record       on `training_steps`

What the trainer before had not done when it ended: resume.py. Invariant: what was consumed, the weights and the offset
are one checkpoint, so no group is trained twice or skipped. The record's `checkpoint` and `publish` seconds are those
of the step before, so that a missing one can be emitted again byte for byte.
On failure: FencedError, ConfigurationError, UnavailableError, OSError; the next start resumes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep

from ..batch.batches import Batch
from ..batch.groups import Verdict
from ..rating_drop import scores_of, watched
from .checkpoint import Checkpoints, CheckpointState
from .versions import Versions

__all__ = ["Store"]


@dataclass
class Store:
    """One policy's, by the trainer that claimed it; one thread. Its learner holds the weights."""

    versions: Versions
    checkpoints: Checkpoints
    refusals: Refusals
    _dead: list[Verdict] = field(default_factory=list)
    """Records of the batches since the last checkpoint."""

    def __post_init__(self) -> None:
        self.progress = self.versions.progress

    @property
    def state(self) -> CheckpointState:
        """Where training stands."""
        return self.progress.state

    def conclude(self, batch: Batch, record: TrainingStep, running: dict[str, float]) -> TrainingStep:
        """A batch that was consumed, and led to the learner's present weights and these running means; its record, with
        what its scores show of the versions that earned them.
        """
        before = self.state
        self._dead += batch.dead
        scores = scores_of((*batch.groups, *batch.untrained), before.run)
        ratings, worse = watched(before.ratings, scores, self.versions.window)
        record = msgspec.structs.replace(record, rated_worse=worse)
        encoded = TRAINING_STEPS.encode(record)
        began = time.perf_counter()
        self.progress.consumed.update(dict.fromkeys(batch.consumed))
        self.progress.training_step = encoded
        self.progress.advance(
            step=record.step,
            version=record.version,
            num_unpublished=record.num_unpublished,
            base_version=before.version if record.version != before.version else before.base_version,
            next_offset=batch.next_offset,
            accounting=record.accounting,
            running=running,
            ratings=ratings,
        )
        # Before a rollback is asked for: where an older one is resumed, it is executed before the replay.
        is_last = self.versions.source.is_last(record.step, record.next_offset)
        if worse or is_last or record.step % self.versions.config.checkpoint_every == 0:
            self.save()
        saved = time.perf_counter()
        if record.version != before.version:
            self.versions.publish()
        self.versions.policy_log.training_step(encoded)
        seconds = {"checkpoint": saved - began, "publish": time.perf_counter() - saved}
        self.progress.state = msgspec.structs.replace(self.state, seconds=seconds)
        return record

    def save(self) -> None:
        """Checkpoints what is there, unless it is, or ends with records that a mended reader may read after all."""
        if self.progress.is_saved or self.refusals.rows:
            return
        self.versions.policy_log.dead_letter(self._dead)
        self._dead.clear()
        self.checkpoints.save(self.progress, self.versions.learner.tensors())
