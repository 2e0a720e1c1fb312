"""A batch is concluded: checkpoint, version, record, in this order; and a rollback: old content under a new number.

    checkpoint   every `checkpoint_every` steps, unless it ends with undecodable records: dead letters, then one rename
    version      where the step led to one: `[publish] every` updates, the last batch, or as a replay has it
    record       on `training_steps`

What the trainer before had not done when it ended: resume.py. Invariant: what was consumed, the weights and the offset
are one checkpoint, so no group is trained twice or skipped. The record's `checkpoint` and `publish` seconds are those
of the step before, so that a missing one can be emitted again byte for byte.
A rollback is asked for on `weights`, by the ratings of a step, or by the history that is repeated. Versions only grow;
the optimiser's moments belong to other weights. A request whose version is gone is refused in the log, and done.
On failure: FencedError, ConfigurationError, UnavailableError, OSError; the next start resumes.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.weights import RollbackRequest

from ..batch.batches import Batch
from ..batch.groups import Verdict
from ..rating_drop import judge_ratings, restarted_at, scores_of
from .checkpoint import Checkpoints, CheckpointState
from .publish import Versions

_log = logging.getLogger(__name__)


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
        ratings, worse = judge_ratings(before.ratings, scores, self.versions.window)
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


@dataclass
class Rollbacks:
    """One policy's, by the trainer that claimed it; one thread."""

    store: Store

    def __post_init__(self) -> None:
        self.versions, self.policy_log = self.store.versions, self.store.versions.policy_log

    def look(self) -> None:
        """Stops (FencedError) when another trainer owns the policy; does what people asked for."""
        self.policy_log.look()
        while (found := self.policy_log.next_request(self.store.state.weights_offset)) is not None:
            self._roll_back(*found)

    def ask_where_worse(self, record: TrainingStep) -> None:
        """As if a person had asked for it after this step; once, for the request is named after the step."""
        worse, request_id = record.rated_worse, f"rated-worse-at-step-{record.step}"
        if worse is None:
            return
        if not self.policy_log.lineage.is_requested(request_id):
            _log.warning("step %d: %s", record.step, worse.text)
            self.policy_log.announce(
                RollbackRequest(
                    policy=record.policy,
                    run=record.run,
                    request_id=request_id,
                    to_version=worse.before.to_version,
                    requested_by=f"trainer, step {record.step}: {worse.text}",
                    at_ms=record.ended_at_ms,
                )
            )
        self.look()

    def go_back(self, to_version: int) -> None:
        """A rollback of the history that is repeated. Raises OSError when the version's folder is gone."""
        self.versions.recall(to_version)
        self._go_on_from(to_version, rollbacks=self.store.state.rollbacks + 1)

    def _roll_back(self, offset: int, request: RollbackRequest) -> None:
        progress = self.store.progress
        progress.state = msgspec.structs.replace(progress.state, weights_offset=offset + 1)
        try:
            self.versions.recall(request.to_version)
        except (OSError, ValueError) as error:
            _log.warning("rollback to version %d refused: %s", request.to_version, str(error)[:300])
            # Or what called for it would at each step.
            ratings = restarted_at(progress.state.ratings, progress.state.version)
            progress.state = msgspec.structs.replace(progress.state, ratings=ratings)
            return
        self._go_on_from(request.to_version)

    def _go_on_from(self, to_version: int, **changes: Any) -> None:
        version = self.versions.next_number()
        ratings = restarted_at(self.store.state.ratings, version)
        self.store.progress.advance(
            version=version, base_version=to_version, num_unpublished=0, ratings=ratings, **changes
        )
        self.store.save()
        self.versions.publish()
        _log.info("rolled back: version %d has the content of version %d", version, to_version)
