"""Where a starting trainer stands: a fresh run, or its newest checkpoint; or it must not go on.

In: the newest checkpoint (or none) and the lineage on `weights`, both read after the claim. Out: Progress, with the
learner's weights, optimiser and generators set. Invariant: versions never go back; a run whose weights topic is
ahead of its checkpoints would publish other content under numbers that engines know, so it is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import Tensor

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.weights import Lineage

from ..config import TrainerHandles
from ..step import Learner
from .checkpoint import CheckpointState, Progress

__all__ = ["resume"]

_log = logging.getLogger(__name__)


def resume(
    handles: TrainerHandles,
    loaded: tuple[Progress, Mapping[str, Tensor]] | None,
    *,
    lineage: Lineage,
    learner: Learner,
) -> Progress:
    """Sets the learner to the checkpoint and says where it stands; step 0 without one.

    Raises:
        ConfigurationError: the checkpoint is another run's, or older than what was published.
    """
    newest = lineage.newest.version if lineage.newest else None
    if loaded is None:
        if newest is not None and newest > 0:
            raise ConfigurationError(
                f"expected a checkpoint under {handles.work_dir}, since version {newest} of policy "
                f"{handles.policy!r} was published, got none: restore the folder, or start a new run"
            )
        return Progress(CheckpointState(policy=handles.policy, run=handles.run))
    progress, tensors = loaded
    state = progress.state
    if (state.run, state.policy) != (handles.run, handles.policy):
        raise ConfigurationError(
            f"[trainer] work_dir: expected checkpoints of run {handles.run!r}, policy {handles.policy!r}, got "
            f"{state.run!r}, {state.policy!r}: give each policy of each run a folder of its own"
        )
    if newest is not None and newest > state.version:
        raise ConfigurationError(
            f"expected a checkpoint of version {newest} (published), got version {state.version} as the newest under "
            f"{handles.work_dir}: restore the folder, or start a new run"
        )
    learner.restore(tensors)
    _log.info("resumes: step=%d version=%d next_offset=%d", state.step, state.version, state.next_offset)
    return progress
