"""Which weights become a version, under which number, and which folders stay.

In: where training stands, the versions on `weights` so far, what is due by the source. Out: version folders and their
manifests. Invariant: no number ever has two contents: where the log is replayed (resumed from an older checkpoint, or
from one between two of which steps lay) a number that is published already is announced again if the weights are equal,
else training goes on above the newest number.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tracegrad.schemas.records.weights import VersionManifest

from ..batch.batches import Batch
from ..config import TrainerConfig, TrainerHandles
from ..learner import Learner
from ..rating_drop import held_from
from ..source import Source
from .checkpoint import CheckpointState, Progress
from .policy_log import PolicyLog
from .publish import Publisher

__all__ = ["Versions"]

_log = logging.getLogger(__name__)


@dataclass
class Versions:
    """One policy's, by the trainer that claimed it; one thread. Its learner holds the weights."""

    config: TrainerConfig
    handles: TrainerHandles
    learner: Learner
    policy_log: PolicyLog
    progress: Progress
    source: Source
    window: int
    """Of a rollback that the ratings call for, in scored conversations; 0: none does."""

    def __post_init__(self) -> None:
        self._publisher = Publisher(self.handles, keep=self.config.keep_versions, is_held=self._is_held)

    @property
    def state(self) -> CheckpointState:
        """Where training stands."""
        return self.progress.state

    def after(self, batch: Batch, *, is_updated: bool) -> tuple[int, int]:
        """The newest version after a batch from which the learner's weights come, and how many updates it lacks."""
        state = self.state
        step, num = state.step + 1, state.num_unpublished + is_updated
        is_due = self.source.is_due(state)
        if is_due is None:
            planned = self.policy_log.lineage.versions.get(state.version + 1)
            # A replay publishes where it was published: later tokens are of that version.
            is_every = num >= self.handles.publish.every
            is_time = is_every if planned is None or planned.step < step else planned.step == step
            is_due = is_time or self.source.is_last(step, batch.next_offset)
        return (self.next_number(), 0) if num and is_due else (state.version, num)

    def next_number(self) -> int:
        """Of the present weights, which just changed: engines must know no other content under it."""
        version, lineage = self.state.version + 1, self.policy_log.lineage
        if lineage.newest is None or lineage.newest.version < version:
            return version
        published = lineage.versions.get(version)
        if published is not None and self._publisher.is_content(self.learner, published):
            return version
        above = lineage.newest.version + 1
        _log.warning("replay: version %d was published with other weights; goes on as version %d", version, above)
        return above

    def publish(self) -> None:
        """Publishes the present weights, which the newest checkpoint holds or a replay gives, under this epoch."""
        manifest = self._publisher.write(self.learner, self.progress, epoch=self.policy_log.epoch)
        self.policy_log.announce(manifest)

    def is_lost(self, published: VersionManifest | None) -> bool:
        """Whether the present version is to be published anew: the newest that is damaged would never be served, and no
        batch comes before it is."""
        is_newest = published is self.policy_log.lineage.newest
        return published is None or (is_newest and not self._publisher.is_whole(published))

    def recall(self, version: int) -> None:
        """Sets the learner to an earlier version. Raises OSError when its folder is gone, ConfigurationError when it
        holds another model's tensors."""
        manifest = self.policy_log.lineage.versions.get(version)
        if manifest is None:
            raise FileNotFoundError(f"version {version} was never published")
        self._publisher.recall(self.learner, manifest)

    def _is_held(self, version: int) -> bool:
        """Whether a version is kept, however old: for a held-out pass, or because a rollback may go to it."""
        may_be_gone_to = self.window > 0 and version >= held_from(self.state.ratings, self.window)
        return may_be_gone_to or self.source.is_needed(version) or self.policy_log.lineage.held_out.is_held(version)
