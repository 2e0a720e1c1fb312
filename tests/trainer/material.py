"""Groups, records and rows made to measure; no torch. A call is (return, sampled ids); ids and logprobs are seeded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from tests.versions import sampled_by
from tracegrad.schemas.log.protocol import Log, Record
from tracegrad.schemas.records.transitions import GroupSummary, MemberSummary, SegmentRow, Turn, encode_group
from tracegrad.schemas.records.versions import VersionSpan
from tracegrad.trainer.batch.groups import Group, GroupLimits, judge

VOCABULARY = 261
"""Of tests/tiny_models.py."""
LIMITS = GroupLimits("policy", VOCABULARY)


def turn(
    start: int,
    end: int,
    *,
    call: str = "call-0",
    returned: float = 0.0,
    peers: str = "0",
    version: int | VersionSpan = 0,
    temperature: float = 1.0,
    weight: float = 1.0,
    index: int = 0,
    agent: str | None = None,
) -> Turn:
    """A turn whose tokens one version sampled."""
    return Turn(
        start=start,
        end=end,
        turn=index,
        call_id=call,
        agent=agent,
        temperature=temperature,
        reward_parts=(),
        return_=returned,
        peers=peers,
        weight=weight,
        versions=(version if isinstance(version, VersionSpan) else sampled_by(version),),
    )


def segment(
    rollout: str,
    turns: Sequence[Turn],
    *,
    num_tokens: int = 8,
    mask: Sequence[int] | None = None,
    number: int = 0,
    rollout_tokens: int | None = None,
    seed: int = 0,
) -> SegmentRow:
    """A row whose turns are trained, unless a mask is given."""
    rng = random.Random(f"{rollout}/{number}/{seed}")
    if mask is None:
        mask = [int(any(t.start <= i < t.end for t in turns)) for i in range(num_tokens)]
    return SegmentRow(
        rollout_id=rollout,
        attempt_id="aaaa",
        segment=number,
        token_ids=np.array([rng.randrange(VOCABULARY) for _ in range(num_tokens)], np.int32),
        loss_mask=np.array(mask, np.uint8),
        logprobs=np.array([-5.5 + rng.uniform(-0.3, 0.3) if m else 0.0 for m in mask], np.float32),
        turns=tuple(turns),
        rollout_tokens=sum(mask) if rollout_tokens is None else rollout_tokens,
    )


def summary(
    group: str, rollouts: Sequence[str], *, policy: str = "policy", excluded: str = "", reward: float | None = 1.0
) -> GroupSummary:
    """A group's summary; its members all count unless the group is excluded."""
    members = tuple(
        MemberSummary(
            rollout_id=rollout,
            episode_id=rollout + "aaaa",
            attempt_id="aaaa",
            state="succeeded",
            reward=reward,
            excluded=excluded,
            num_tools=2,
            num_tools_succeeded=1,
        )
        for rollout in rollouts
    )
    return GroupSummary(
        group_id=group, group_index=0, task_id="task", policy=policy, members=members, excluded=excluded
    )


def group_bytes(
    index: int, *, size: int = 4, version: int | VersionSpan = 0, spread: float = 1.0, seed: int = 0
) -> bytes:
    """A group of rollouts of one or two turns and unlike lengths; `spread` 0 makes all returns equal."""
    rng = random.Random(f"group/{index}/{seed}")
    group = f"{index:024x}"
    rows = []
    rollouts = [f"{group}{member:04x}" for member in range(size)]
    for rollout in rollouts:
        prompt, first, gap, second = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 5), rng.randint(2, 6)
        final = spread * rng.choice([0.0, 1.0])
        turns = [turn(prompt, prompt + first, call="a", returned=final + spread * 0.5, peers="0", version=version)]
        length = prompt + first
        if rng.random() < 0.7:
            begin = length + gap
            length = begin + second
            turns.append(turn(begin, length, call="b", returned=final, peers="1", version=version))
        rows.append(segment(rollout, turns, num_tokens=length, seed=seed))
    return encode_group(summary(group, rollouts), rows)


def conversation_bytes(index: int, version: int, reward: float) -> bytes:
    """A conversation of one turn, a group of its own, which a version sampled and somebody rated."""
    group = f"{index:024x}"
    row = segment(group, [turn(3, 7, returned=reward, version=version)])
    return encode_group(summary(group, [group], reward=reward), [row])


def record(value: bytes | None, offset: int = 0) -> Record:
    """A record of `transitions` as read."""
    return Record(topic="transitions", partition=0, offset=offset, key=b"policy", value=value)


def group_in(value: bytes | None) -> Group:
    """What a record holds; a well-formed group."""
    verdict = judge(record(value), LIMITS)
    assert verdict.group is not None, verdict.detail
    return verdict.group


def groups_of(num: int) -> list[Group]:
    """Of four rollouts each, with one or two turns and unlike lengths."""
    return [group_in(group_bytes(index)) for index in range(num)]


def append_groups(log: Log, topic: str, values: Sequence[bytes | None]) -> None:
    """Onto the policy's partition, acknowledged."""
    writer = log.writer()
    for value in values:
        writer.append(topic, key=b"policy", value=value, partition=0).result(20)
    writer.close()
