"""How many training groups may be admitted now. Pure.

    ahead    = admitted - lost - consumed
    capacity = min(max_running - running, min(eta + 1, last_step - step) * G - ahead)

in training groups, G of them a batch, up to that of `last_step`; nothing while the engines serve a version more than
eta behind the newest one. `consumed` is cumulative on `training_steps` and holds the excluded groups too, so that a
group that trained nothing gives its place back: at the end of its batch, or, where that has its groups without spread
refilled, as soon as a trainer that waits says so. Validation never counts; it says how far training may go beside it
(held_out.py).
"""

from __future__ import annotations

import msgspec

from .config import PaceConfig, TasksHandles


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands, as its topics tell."""

    admitted: int = 0
    """Training groups asked for so far."""
    running: int = 0
    """Of those, the ones with a rollout that has no final event."""
    lost: int = 0
    """Of those admitted, the ones that will never close; others are admitted in their stead."""
    consumed: int = 0
    """Groups in batches so far, trained or excluded; and those that the next one has given back."""
    step: int = 0
    """The newest batch that is concluded."""
    version: int = 0
    """What it led to."""
    acked: int | None = None
    """The version that the slowest engine serves; None: one serves none yet."""


def capacity(
    progress: RunProgress, pace: PaceConfig, handles: TasksHandles, *, max_running: int, last_step: int
) -> int:
    """Training groups to admit now, 0 or more; `max_running`: as many are in the works at once."""
    if progress.acked is None or progress.acked < progress.version - pace.staleness:
        return 0
    ahead = progress.admitted - progress.lost - progress.consumed
    batches = min(pace.staleness + 1, last_step - progress.step)
    return max(0, min(max_running - progress.running, batches * handles.groups_per_step - ahead))
