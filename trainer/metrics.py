"""What a batch did, as a TrainingStep: rewards and tools from the groups' summaries, the rest from rows and step.

Rewards, tools and rollouts are counted over every well-formed group of the batch, also excluded ones (a stale group's
rewards are still news); tokens, turns and staleness over what trained. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.training import Accounting, TrainingStep

from .batch.batches import Batch
from .batch.groups import Group
from .batch.rows import TrainingRow
from .step import StepResult

__all__ = ["describe_step"]


def _reward_parts(groups: Sequence[Group], num_rollouts: int) -> dict[str, float]:
    """Mean per rollout of what each rule paid; a call that stands in several rows counts once."""
    paid: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        calls: set[tuple[str, str]] = set()
        for row in group.rows:
            for turn in row.turns:
                if (row.rollout_id, turn.call_id) not in calls:
                    calls.add((row.rollout_id, turn.call_id))
                    for rule, value in turn.reward_parts:
                        paid[rule].append(value)
    return {rule: math.fsum(values) / num_rollouts for rule, values in sorted(paid.items())}


def _staleness(rows: Sequence[TrainingRow], version: int) -> tuple[float, int]:
    """Mean and maximum over trained tokens."""
    if not rows:
        return 0.0, 0
    ages = np.concatenate([version - row.versions_T[row.loss_mask_T] for row in rows])
    return float(ages.mean()), int(ages.max())


def describe_step(
    *,
    run: RunHash,
    policy: str,
    step: int,
    epoch: int,
    version_before: int,
    batch: Batch,
    rows: Sequence[TrainingRow],
    result: StepResult,
    accounting: Accounting,
    seconds: dict[str, float],
    started_at_ms: int,
    ended_at_ms: int,
) -> TrainingStep:
    """The record of one batch."""
    groups = [*batch.groups, *batch.untrained]
    members = [member for group in groups for member in group.summary.members]
    rewards = [member.reward for member in members if member.reward is not None]
    num_tools = sum(member.num_tools for member in members)
    staleness_mean, staleness_max = _staleness(rows, version_before)
    return TrainingStep(
        run=run,
        policy=policy,
        step=step,
        epoch=epoch,
        version=version_before + 1 if result.is_updated else version_before,
        is_updated=result.is_updated,
        skipped=result.skipped,
        begin_offset=batch.begin_offset,
        next_offset=batch.next_offset,
        batch_hash=batch.hash,
        group_ids=batch.group_ids,
        excluded_ids=batch.excluded,
        accounting=accounting,
        loss=result.loss,
        grad_norm=result.grad_norm,
        learning_rate=result.learning_rate,
        reward=math.fsum(rewards) / len(rewards) if rewards else None,
        reward_parts=_reward_parts(groups, max(1, len(members))),
        num_rollouts=len(members),
        num_unscored=len(members) - len(rewards),
        num_tokens=sum(int(row.loss_mask_T.sum()) for row in rows),
        num_turns=len(
            {(row.rollout_id, turn.call_id) for group in batch.groups for row in group.rows for turn in row.turns}
        ),
        tool_success=sum(member.num_tools_succeeded for member in members) / num_tools if num_tools else None,
        staleness_mean=staleness_mean,
        staleness_max=staleness_max,
        logprob_error_max=result.logprob_error_max,
        num_checked_tokens=result.num_checked_tokens,
        ratio_mean=result.ratio_mean,
        clip_fraction=result.clip_fraction,
        seconds=seconds,
        started_at_ms=started_at_ms,
        ended_at_ms=ended_at_ms,
    )
