"""A batch is concluded: checkpoint, version, record, in this order; and a rollback: old content under a new number.

    checkpoint   every `checkpoint_every` steps, unless it ends with undecodable records: dead letters, then one rename
    version      where the step led to one: `[publish] every` updates, the last batch, or as a replay has it
    record       on `training_steps`

Each store goes through snapshot, write and announce (snapshot.py). Where stores overlap training, a thread writes while
the loop goes on with the next batch, and the loop announces: before the next store, when it waits for groups, and when
it ends or rolls back. A step that has no files to write meanwhile is told behind them.
What the trainer before had not done when it ended: resume.py. Invariant: what was consumed, the weights and the offset
are one checkpoint, so no group is trained twice or skipped. Nothing is told of a step before its files are durable: a
manifest, then the record, in the order of steps. The record's `checkpoint` and `publish` seconds are those of the step
before, so that a missing one can be emitted again byte for byte; they are what the loop spent.
A rollback is asked for on `weights`, by the ratings of a step, or by the history that is repeated. Versions only grow;
the optimiser's moments belong to other weights. A request whose version is gone is refused in the log, and done.
On failure: FencedError, ConfigurationError, UnavailableError, OSError; the next start resumes.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tracegrad.schemas.beat import busy
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.weights import RollbackRequest, VersionManifest

from ..batch.batches import Batch
from ..batch.groups import Verdict
from ..rating_drop import judge_ratings, restarted_at, scores_of
from .checkpoint import Checkpoints, CheckpointState
from .publish import Versions
from .snapshot import Snapshot

_log = logging.getLogger(__name__)


@dataclass
class Store:
    """One policy's, by the trainer that claimed it; one thread. Its learner holds the weights."""

    versions: Versions
    checkpoints: Checkpoints
    refusals: Refusals
    overlaps: bool | None
    """Whether a thread may write while the loop goes on; None: on a GPU, unless each batch waits for the one before it,
    or each version is compared with another run's."""
    _dead: list[Verdict] = field(default_factory=list)
    """Records of the batches since the last checkpoint."""
    _untold: list[bytes] = field(default_factory=list)
    """Records of steps that are concluded; they wait for the files that are being written."""
    _writing: Future[tuple[float, VersionManifest | None]] | None = None

    def __post_init__(self) -> None:
        self.progress, self.policy_log = self.versions.progress, self.versions.policy_log
        self.pool = ThreadPoolExecutor(1, "store")
        versions = self.versions
        self._is_cpu = versions.learner.settings["device"] == "cpu"
        if self.overlaps is None:
            self.overlaps = not (self._is_cpu or versions.handles.is_synchronous or versions.source.is_repeat)

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
        is_due = worse is not None or is_last or record.step % self.versions.config.checkpoint_every == 0
        is_sync = worse is not None or is_last or not self.overlaps
        saved = self._store(is_due, record.version != before.version, record=encoded, is_sync=is_sync)
        seconds = {"checkpoint": saved - began, "publish": time.perf_counter() - saved}
        self.progress.state = msgspec.structs.replace(self.state, seconds=seconds)
        return record

    def save(self, *, publishes: bool = False) -> None:
        """Checkpoints what is there, unless it is, or ends with records that a mended reader may read after all; and
        publishes it. On return nothing is under way, and all is told."""
        self.finish()
        self._store(True, publishes)

    def finish(self, *, waits: bool = True) -> None:
        """Announces what the thread writes, once its files are there. `waits`: for them; else only if they are."""
        writing = self._writing
        if writing is None or not (waits or writing.done()):
            return
        self._writing = None
        if not writing.done():
            with busy("storing", self._num_bytes, under_way_s=time.perf_counter() - self._began):
                writing.exception()
        _, manifest = writing.result()
        self.policy_log.check()
        self._announce(manifest)

    def _store(self, saves: bool, publishes: bool, *, record: bytes | None = None, is_sync: bool = True) -> float:
        """One more store: its files, if any, then this record of a step; when the loop was done with a checkpoint."""
        saves = saves and not self.progress.is_saved and not self.refusals.rows
        if saves or publishes:
            self.finish()
        self._untold += [record] if record is not None else []
        saved, manifest = time.perf_counter(), None
        if saves or publishes:
            snapshot = self._snapshot(saves, publishes)
            self.versions.publisher.make_room(snapshot.num_bytes)
            if not is_sync and snapshot.fits_memory:
                self._begin(snapshot.copied(is_exported=not self._is_cpu))
                return time.perf_counter()
            saved, manifest = self._write(snapshot)
        if self._writing is None:
            self._announce(manifest)
        return saved

    def _snapshot(self, saves: bool, publishes: bool) -> Snapshot:
        """Of now. Dead letters come first: with the checkpoint their batches count as consumed."""
        if saves:
            self.policy_log.dead_letter(self._dead)
            self._dead.clear()
        version = self.versions.snapshot() if publishes else None
        return Snapshot(self.progress if saves else None, self.versions.learner.tensors() if saves else {}, version)

    def _begin(self, snapshot: Snapshot) -> None:
        """The thread writes these copies."""
        if snapshot.version is not None:
            self.progress.unannounced = {self.state.version: snapshot.version.manifest}
        self.progress.is_saved = self.progress.is_saved or snapshot.progress is not None
        self._num_bytes, self._began = snapshot.num_bytes, time.perf_counter()
        self._writing = self.pool.submit(self._write, snapshot)

    def _write(self, snapshot: Snapshot) -> tuple[float, VersionManifest | None]:
        """Files only, in whichever thread: when the checkpoint was durable, and what may be announced now."""
        if snapshot.progress is not None:
            self.checkpoints.save(snapshot.progress, snapshot.tensors)
        return time.perf_counter(), self.versions.write(snapshot.version) if snapshot.version is not None else None

    def _announce(self, manifest: VersionManifest | None) -> None:
        """The files are durable: the version that they hold, then the steps up to them."""
        if manifest is not None:
            self.versions.announce(manifest)
        self.progress.unannounced = {}
        for record in self._untold:
            self.policy_log.training_step(record)
        self._untold.clear()


@dataclass
class Rollbacks:
    """One policy's, by the trainer that claimed it; one thread."""

    store: Store

    def __post_init__(self) -> None:
        self.versions, self.policy_log = self.store.versions, self.store.policy_log

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
        self.store.finish()
        self.versions.recall(to_version)
        self._go_on_from(to_version, rollbacks=self.store.state.rollbacks + 1)

    def _roll_back(self, offset: int, request: RollbackRequest) -> None:
        self.store.finish()
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
        self.store.save(publishes=True)
        _log.info("rolled back: version %d has the content of version %d", version, to_version)
