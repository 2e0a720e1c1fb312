"""Where one policy's training stands, and all that is kept of it: checkpoint, version, record, in this order.

    conclude   a batch: checkpoint (every `checkpoint_every` steps, unless it ends with undecodable records; dead
               letters, then one rename), then publish, then `training_steps`; last the rollback that the ratings call
               for (guard.py)
    begin      what the trainer before had not done when it ended; all of it where there was none
    look       fenced? rollbacks asked for?
    publish    the weights after each `[publish] every`-th update, and after the last batch; a replay where it did

In: batches and their records, requests and held-out passes on `weights`. Out: checkpoints, version folders and their
manifests, records of `training_steps`, rollback requests. Invariant: what was consumed, the weights and the offset are
one checkpoint, so no group is trained twice or skipped; no number ever has two contents: where the log is replayed
(resumed from an older checkpoint, or from one between two of which steps lay) a number that is published already is
announced again if the weights are equal, else training goes on above the newest number. The record's `checkpoint` and
`publish` seconds are those of the step before, so that a missing one can be emitted again byte for byte.
On failure: FencedError, ConfigurationError, UnavailableError, OSError; the next start resumes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.weights import RollbackRequest

from ..batch.batches import Batch
from ..batch.groups import Verdict
from ..config import AlarmsConfig, TrainerConfig, TrainerHandles
from ..guard import begun_anew, held_from, scores_of, watched
from ..learner import Learner
from .checkpoint import Checkpoints, CheckpointState, resume
from .policy_log import PolicyLog
from .publish import Publisher

__all__ = ["Store"]

_log = logging.getLogger(__name__)


class Store:
    """One policy's, by the trainer that claimed it; one thread. Its learner holds the weights."""

    def __init__(
        self,
        config: TrainerConfig,
        alarms: AlarmsConfig,
        handles: TrainerHandles,
        *,
        learner: Learner,
        policy_log: PolicyLog,
        refusals: Refusals,
        is_needed: Callable[[int], bool],
    ) -> None:
        """Resumes or begins: on return the run's present version is announced and its last step recorded. Versions
        that `is_needed` names are kept."""
        self._config = config
        self._window = alarms.window(is_captured=handles.trains_captured) if handles.history is None else 0
        self._learner = learner
        self._policy_log = policy_log
        self._refusals = refusals
        self._dead: list[Verdict] = []
        """Records of the batches since the last checkpoint."""
        self._checkpoints = Checkpoints(Path(handles.work_dir) / "checkpoints", keep=config.keep_checkpoints)
        self._publish_every = handles.publish.every
        self._history = handles.history
        self._repeats = handles.history is not None and handles.history.mode == "same"
        """Another run's versions, and no others."""
        self._is_needed = is_needed
        self._publisher = Publisher(handles, keep=config.keep_versions, is_held=self._is_held)
        self._progress = resume(handles, self._checkpoints, policy_log, learner)
        self._is_saved = bool(self.state.files)
        self.past_steps: list[TrainingStep] = []
        """Those before the next one that this run recorded."""
        self._begin()

    @property
    def state(self) -> CheckpointState:
        """Where training stands."""
        return self._progress.state

    @property
    def consumed(self) -> dict[str, None]:
        """All groups consumed, in order."""
        return self._progress.consumed

    def _begin(self) -> None:
        if not self._is_saved:
            self._advance()
            self.save()
        lineage = self._policy_log.lineage
        published = lineage.versions.get(self.state.version)
        # The newest that is damaged would never be served, and no batch comes before it is.
        is_lost = published is None or (published is lineage.newest and not self._publisher.is_whole(published))
        if not self.state.num_unpublished:
            if is_lost:
                self._publish()
        elif not self._repeats and (is_lost or self._is_last(self.state.step, self.state.next_offset)):
            self._publish_rest()
        if self._progress.training_step is not None:
            self.past_steps = self._policy_log.training_steps(self._progress.training_step)
            self._roll_back_where_worse(self.past_steps[-1])

    def _is_held(self, version: int) -> bool:
        """Whether a version is kept, however old: for a held-out pass, or because a rollback may go to it."""
        may_be_gone_to = self._window > 0 and version >= held_from(self.state.guard, self._window)
        return may_be_gone_to or self._is_needed(version) or self._policy_log.lineage.held_out.is_held(version)

    def look(self) -> None:
        """Stops (FencedError) when another trainer owns the policy; serves what people asked for."""
        self._policy_log.look()
        while (found := self._policy_log.next_request(self.state.weights_offset)) is not None:
            self._roll_back(*found)

    def conclude(self, batch: Batch, record: TrainingStep, running: dict[str, float]) -> TrainingStep:
        """A batch that was consumed, and led to the learner's present weights and these running means; its record, with
        what its scores show of the versions that earned them.
        """
        before = self.state
        self._dead += batch.dead
        scores = scores_of((*batch.groups, *batch.untrained), before.run)
        guard, worse = watched(before.guard, scores, self._window)
        record = msgspec.structs.replace(record, rated_worse=worse)
        encoded = TRAINING_STEPS.encode(record)
        began = time.perf_counter()
        self._progress.consumed.update(dict.fromkeys(batch.consumed))
        self._progress.training_step = encoded
        self._advance(
            step=record.step,
            version=record.version,
            num_unpublished=record.num_unpublished,
            base_version=before.version if record.version != before.version else before.base_version,
            next_offset=batch.next_offset,
            accounting=record.accounting,
            running=running,
            guard=guard,
        )
        # Before a rollback is asked for: where an older one is resumed, it is executed before the replay.
        is_last = self._is_last(record.step, record.next_offset)
        if worse or is_last or record.step % self._config.checkpoint_every == 0:
            self.save()
        saved = time.perf_counter()
        if record.version != before.version:
            self._publish()
        self._policy_log.training_step(encoded)
        seconds = {"checkpoint": saved - began, "publish": time.perf_counter() - saved}
        self._progress.state = msgspec.structs.replace(self.state, seconds=seconds)
        self._roll_back_where_worse(record)
        return record

    def save(self) -> None:
        """Checkpoints what is there, unless it is, or ends with records that a mended reader may read after all."""
        if self._is_saved or self._refusals.rows:
            return
        self._policy_log.dead_letter(self._dead)
        self._dead.clear()
        self._checkpoints.save(self._progress, self._learner.tensors())
        self._is_saved = True

    def version_after(self, batch: Batch, *, is_updated: bool, is_due: bool | None) -> tuple[int, int]:
        """The newest version after a batch from which the learner's weights come, and how many updates it lacks.

        Args:
            is_due: whether the batch leads to a version if there are any; None: as `[publish]` has it.
        """
        state = self.state
        step, num = state.step + 1, state.num_unpublished + is_updated
        if is_due is None:
            planned = self._policy_log.lineage.versions.get(state.version + 1)
            # A replay publishes where it was published: later tokens are of that version.
            is_time = num >= self._publish_every if planned is None or planned.step < step else planned.step == step
            is_due = is_time or self._is_last(step, batch.next_offset)
        return (self._next_version(), 0) if num and is_due else (state.version, num)

    def _is_last(self, step: int, next_offset: int) -> bool:
        """Whether no batch follows the one of this number, up to this offset."""
        return step >= self._config.steps or (self._history is not None and next_offset >= self._history.end_offset)

    def _next_version(self) -> int:
        """The number of the present weights, which just changed: engines must know no other content under it."""
        version, lineage = self.state.version + 1, self._policy_log.lineage
        if lineage.newest is None or lineage.newest.version < version:
            return version
        published = lineage.versions.get(version)
        if published is not None and self._publisher.is_content(self._learner, published):
            return version
        above = lineage.newest.version + 1
        _log.warning("replay: version %d was published with other weights; goes on as version %d", version, above)
        return above

    def _advance(self, **changes: Any) -> None:
        """To the state with these changes and this epoch, which is not checkpointed yet."""
        self._progress.state = msgspec.structs.replace(self.state, epoch=self._policy_log.epoch, **changes)
        self._is_saved = False

    def _publish(self) -> None:
        """Publishes the present weights, which the newest checkpoint holds or a replay gives, under this epoch."""
        manifest = self._publisher.write(self._learner, self._progress, epoch=self._policy_log.epoch)
        self._policy_log.announce(manifest)

    def _publish_rest(self) -> None:
        """The weights that no version holds under a number of their own: the newest step leads to it, told anew."""
        assert self._progress.training_step is not None
        record, before = TRAINING_STEPS.decode(self._progress.training_step), self.state
        assert isinstance(record, TrainingStep)
        version, epoch = self._next_version(), self._policy_log.epoch
        told = msgspec.structs.replace(record, version=version, num_unpublished=0, epoch=epoch)
        self._progress.training_step = TRAINING_STEPS.encode(told)
        self._advance(version=version, base_version=before.version, num_unpublished=0)
        self.save()
        self._publish()

    def _roll_back_where_worse(self, record: TrainingStep) -> None:
        """As if a person had asked for it after this step; once, for the request is named after the step."""
        worse, request_id = record.rated_worse, f"rated-worse-at-step-{record.step}"
        if worse is None:
            return
        if not self._policy_log.lineage.is_requested(request_id):
            _log.warning("step %d: %s", record.step, worse.text)
            self._policy_log.announce(
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

    def _roll_back(self, offset: int, request: RollbackRequest) -> None:
        """Old content under a new number: versions only grow. The optimiser's moments belong to other weights."""
        self._progress.state = msgspec.structs.replace(self.state, weights_offset=offset + 1)
        try:
            self._recall(request.to_version)
        except (OSError, ValueError) as error:
            _log.warning("rollback to version %d refused: %s", request.to_version, str(error)[:300])
            # Or what called for it would at each step.
            guard = begun_anew(self.state.guard, self.state.version)
            self._progress.state = msgspec.structs.replace(self.state, guard=guard)
            return
        self._go_on_from(request.to_version)

    def go_back(self, to_version: int) -> None:
        """A rollback of the history that is repeated. Raises OSError when the version's folder is gone."""
        self._recall(to_version)
        self._go_on_from(to_version, rollbacks=self.state.rollbacks + 1)

    def _recall(self, to_version: int) -> None:
        manifest = self._policy_log.lineage.versions.get(to_version)
        if manifest is None:
            raise FileNotFoundError(f"version {to_version} was never published")
        self._publisher.recall(self._learner, manifest)

    def _go_on_from(self, to_version: int, **changes: Any) -> None:
        version = self._next_version()
        guard = begun_anew(self.state.guard, version)
        self._advance(version=version, base_version=to_version, num_unpublished=0, guard=guard, **changes)
        self.save()
        self._publish()
        _log.info("rolled back: version %d has the content of version %d", version, to_version)
