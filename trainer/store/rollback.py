"""Rollbacks: old content under a new number, for versions only grow. The optimiser's moments belong to other weights.

In: requests on `weights`; a step whose ratings are worse; the history that is repeated. Out: a checkpoint and a version
of the old weights; a request of the trainer's own. A request whose version is gone is refused in the log, and done.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.records.weights import RollbackRequest

from ..rating_drop import begun_anew
from .store import Store

__all__ = ["Rollbacks"]

_log = logging.getLogger(__name__)


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
            ratings = begun_anew(progress.state.ratings, progress.state.version)
            progress.state = msgspec.structs.replace(progress.state, ratings=ratings)
            return
        self._go_on_from(request.to_version)

    def _go_on_from(self, to_version: int, **changes: Any) -> None:
        version = self.versions.next_number()
        ratings = begun_anew(self.store.state.ratings, version)
        self.store.progress.advance(
            version=version, base_version=to_version, num_unpublished=0, ratings=ratings, **changes
        )
        self.store.save()
        self.versions.publish()
        _log.info("rolled back: version %d has the content of version %d", version, to_version)
