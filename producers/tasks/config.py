"""What admission is told: `[tasks]` and `[pace]` of the settings file, and the handles of the run that it works for.

In: compose hands them over. Out: three frozen records. Invariant: bounds stand in the types, so what cannot work fails
at load. Imports nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.section import Count, File, Section, Whole


class TasksConfig(Section, frozen=True, kw_only=True):
    """`[tasks]`: what it is trained on, and measured by. A task is a JSON line `{id, input, expected?}`."""

    file: File | None = None
    """Training tasks; required, but in a run that trains on captured traffic, which has none."""
    eval_file: File | None = None
    """Held-out tasks, run greedily before and after, also in a run that trains on captured traffic; None: no score."""
    eval_every: Whole = 0
    """Steps from one pass over the held-out tasks to the next, while training goes on; 0: only before and after. The
    version that scores best is kept."""
    eval_samples: Count = 1
    """Rollouts of each held-out task, for pass@k; several need a `[policy] validation_temperature` above 0."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """k, the rollouts of one task that are compared with each other."""
    max_running: Count | None = None
    """Groups that may run at once; None: one more than the agent's concurrency fills."""
    max_attempts: Count = 3
    """Tries of a rollout whose attempts were aborted by faults that are not the model's."""


class PaceConfig(Section, frozen=True, kw_only=True):
    """`[pace]`: how far rollouts may run ahead of the trainer."""

    staleness: Whole = 2
    """eta: batches that rollouts may be admitted ahead of the trainer; tokens can be a few versions older, as rollouts
    take time. 0 is synchronous (`--sync`): a batch is admitted when the one before it is trained."""


class TasksHandles(msgspec.Struct, frozen=True, kw_only=True):
    """The run that is admitted for: what other sections say of it."""

    run_hash: RunHash
    policy: str
    seed: int
    steps: int
    groups_per_step: int
    """G, groups of one batch."""
    concurrency: int
    """Rollouts that the runner runs at once."""
    time_limit_s: float
    """Of one attempt."""
    rewards_awaited: tuple[str, ...]
    stops_by_cause: bool
    """One cause of all attempts that no training can mend ends the run."""
    engine_ids: tuple[str, ...]
    """The policy's engines, as on `weight_acks`; the slowest of them counts."""
    episode_wait_s: float
    """After a rollout's final event, without lag of the streams: then no episode of it will come any more."""
