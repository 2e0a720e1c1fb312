"""What a batch did, as a TrainingStep: rewards and tools from the groups' summaries, the rest from rows and step.

Rewards, tools, entropies and rollouts are counted over every well-formed group of the batch, also excluded ones (a
stale group's rewards are still news); tokens, turns, lengths and staleness over what trained. `step_line` is the same
for the log. Pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from msgspec.structs import asdict, replace

from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.training import CallAdvantage, StepResult, TrainingStep
from tracegrad.schemas.records.transitions import MemberSummary

from .algorithm.gae import explained_variance
from .algorithm.scale import sample_std
from .batch.batches import Batch, account
from .batch.groups import Group
from .batch.rows import TrainingRow, rollout_tokens
from .store.checkpoint import CheckpointState

_TURNS = 16
"""That are told apart; a record of ten thousand would not be read."""


def _reward_parts(groups: Sequence[Group], num_rollouts: int) -> dict[str, float]:
    """Mean per rollout of what each rule paid."""
    paid: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        for turn in group.turns.values():
            for part in turn.reward_parts:
                paid[part.rule].append(part.value)
    return {rule: math.fsum(values) / num_rollouts for rule, values in sorted(paid.items())}


def _became(batch: Batch) -> dict[str, Any]:
    """What became of the groups of the batch, and of the episodes of those that trained."""
    members = (member for group in batch.groups for member in group.summary.members)
    return {
        "group_ids": batch.group_ids,
        "excluded_ids": batch.excluded,
        "below_bound": tuple(member.episode_id for member in members if member.excluded == Reason.BELOW_BOUND),
        "taken_ids": batch.consumed,
    }


def _left_out(groups: Sequence[Group], members: Sequence[MemberSummary]) -> dict[str, Any]:
    """Calls that leave the loss, and members without rows, by why."""
    masked = Counter(turn.masked for group in groups for turn in group.turns.values() if turn.masked)
    excluded = Counter(member.excluded for member in members if member.excluded)
    return {"masked": dict(sorted(masked.items())), "members_excluded": dict(sorted(excluded.items()))}


def _tool_success(members: Sequence[MemberSummary]) -> float | None:
    """Share of tools that succeeded; None without one."""
    num_tools = sum(member.num_tools for member in members)
    return sum(member.num_tools_succeeded for member in members) / num_tools if num_tools else None


def _spread(groups: Sequence[Group]) -> dict[str, Any]:
    """Of the final rewards within each group with two scored rollouts."""
    rewards = ([member.reward for member in group.summary.members if member.reward is not None] for group in groups)
    # Of equal rewards the rounding of their mean would be left.
    stds = [sample_std(few) if min(few) < max(few) else 0.0 for few in rewards if len(few) > 1]
    return {"reward_std": fmean(stds), "equal_groups": stds.count(0.0) / len(stds)} if stds else {}


def _entropies(groups: Sequence[Group]) -> dict[str, Any]:
    """The mean of -log mu over all sampled tokens, and by turn."""
    sums, nums = np.zeros(_TURNS), np.zeros(_TURNS)
    for group in groups:
        for row in group.rows:
            for turn in row.turns:
                number, mask = min(turn.turn, _TURNS - 1), row.loss_mask[turn.start : turn.end].view(np.bool_)
                sums[number] -= float(row.logprobs[turn.start : turn.end][mask].sum(dtype=np.float64))
                nums[number] += int(mask.sum())
    by_turn = {str(number): float(sums[number] / nums[number]) for number in np.flatnonzero(nums).tolist()}
    return {"entropy": float(sums.sum() / nums.sum()), "entropy_by_turn": by_turn} if by_turn else {}


def _staleness(rows: Sequence[TrainingRow], by_version: Mapping[int, int]) -> dict[str, Any]:
    """Over trained tokens, where their versions can be compared with that of the step."""
    versions = [row.versions_T[row.loss_mask_T] for row in rows if by_version]
    numbers, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *versions]), return_counts=True)
    ages = np.array([by_version[int(number)] for number in numbers], np.int64)
    mean = float(ages @ counts) / max(1, int(counts.sum()))
    return {"staleness_mean": mean, "staleness_max": int(ages.max(initial=0))}


def _lengths(groups: Sequence[Group], rows: Sequence[TrainingRow]) -> dict[str, Any]:
    """Trained tokens, in all and of a rollout; the rows that hold them, and all of their tokens."""
    lengths = [length for length in rollout_tokens(groups).values() if length]
    trained = {"num_tokens": sum(lengths), "length_mean": fmean(lengths or [0]), "length_max": max(lengths, default=0)}
    return trained | {"num_rows": len(rows), "num_row_tokens": sum(len(row.token_ids_T) for row in rows)}


def _explained_variance(rows: Sequence[TrainingRow]) -> float | None:
    """By the values that the critic had before the step; None without a critic."""
    told = [(row.values_T, row.targets_T) for row in rows if row.values_T is not None and row.targets_T is not None]
    values_N, targets_N = torch.from_numpy(np.concatenate([np.zeros((2, 0)), *map(np.stack, told)], axis=1))
    is_asked_N = ~targets_N.isnan()
    return explained_variance(values_N[is_asked_N], targets_N[is_asked_N])


def describe_step(
    before: CheckpointState,
    *,
    version: int,
    num_unpublished: int,
    batch: Batch,
    rows: Sequence[TrainingRow],
    result: StepResult,
    seconds: dict[str, float],
    machine: Mapping[str, str],
    started_at_ms: int,
    ended_at_ms: int,
) -> TrainingStep:
    """The record of one batch that was trained from `before`. `version` is the newest after it; `machine`: `Learner`'s,
    and the seed."""
    groups = [*batch.groups, *batch.untrained]
    members = [member for group in groups for member in group.summary.members]
    rewards = [member.reward for member in members if member.reward is not None]
    return TrainingStep(
        run=before.run,
        policy=before.policy,
        step=before.step + 1,
        epoch=before.epoch,
        version=version,
        num_unpublished=num_unpublished,
        begin_offset=batch.begin_offset,
        next_offset=batch.next_offset,
        batch_hash=batch.hash,
        **_became(batch),
        depends_on={**before.settings, **machine},
        accounting=account(before.accounting, batch),
        reward=math.fsum(rewards) / len(rewards) if rewards else None,
        reward_parts=_reward_parts(groups, max(1, len(members))),
        num_rollouts=len(members),
        num_unscored=len(members) - len(rewards),
        num_turns=sum(len(group.turns) for group in batch.groups),
        tool_success=_tool_success(members),
        started_at_ms=started_at_ms,
        ended_at_ms=ended_at_ms,
        explained_variance=_explained_variance(rows),
        **_left_out(groups, members),
        **_lengths(batch.groups, rows),
        **_staleness(rows, batch.staleness),
        **_spread(groups),
        **_entropies(groups),
        **asdict(replace(result, seconds=seconds | {"read": batch.read_s} | result.seconds | before.seconds)),
    )


def step_line(record: TrainingStep) -> str:
    """One wide line for the log: ids, counts, durations, by their names in the record; no payload."""
    told = {name: value for name, value in asdict(record).items() if isinstance(value, int | float | str)} | {
        "groups": len(record.group_ids),
        "excluded": sorted(set(record.excluded_ids.values())),
        "tokens_s": record.num_tokens / (record.seconds.get("forward_backward") or math.inf),
        "seconds": {phase: round(value, 3) for phase, value in record.seconds.items()},
    }
    words = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in told.items()}
    return " ".join(f"{name}={value}" for name, value in words.items())


def describe_advantages(
    groups: Sequence[Group], rows: Sequence[TrainingRow]
) -> Iterator[tuple[str, tuple[CallAdvantage, ...]]]:
    """What the step made of returns, for who looks, in float32 as the loss was given it: (group, its calls with a
    trained token); `rows` are those of the groups that train a token, in order."""
    left = iter(rows)
    for group in groups:
        calls: list[CallAdvantage] = []
        for segment in group.rows:
            if not segment.loss_mask.any():
                continue
            row = next(left)
            for turn in segment.turns:
                mask_T = row.loss_mask_T[turn.start : turn.end]
                values_N = row.advantages_T[turn.start : turn.end][mask_T]
                if len(values_N):
                    calls.append(
                        CallAdvantage(
                            call_id=turn.call_id,
                            mean=float(values_N.mean(dtype="float64")),
                            low=float(values_N.min()),
                            high=float(values_N.max()),
                            num_tokens=len(values_N),
                        )
                    )
        yield group.summary.group_id, tuple(calls)
