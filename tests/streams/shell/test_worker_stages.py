"""The three stages on real Kafka, one process each: raw records in, the same transitions out as without a broker."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.streams.make import (
    RUN_HASH,
    Item,
    Streams,
    call,
    closed,
    event,
    let_in,
    otlp,
    raw,
    reward,
    rollout,
    signed_by,
    span,
)
from tests.streams.shell.worker_bench import Bench, bench
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.made_of import GroupMadeOf, MadeOf, made_of, raw_positions
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Stage, Topic, Topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

NUM_GROUPS = 30


def _raw(number: int) -> list[Item]:
    """Rollout `number` of a group of two; spans without key, as a Collector writes them."""
    rollout_id = rollout(number)
    group = GroupRef(id=f"{RUN_HASH}{number // 2:016x}", size=2, member=number % 2, index=number // 2)
    first, second = call(f"a{number}", rollout_id, [1, 2], [3]), call(f"b{number}", rollout_id, [4], [5, number])
    return [
        event(rollout_id, RolloutState.STARTED, group=group),
        first,
        second,
        otlp(span(rollout_id + "a001", 1), span(rollout_id + "a001", 2)),
        closed(rollout_id, [first, second]),
        reward(rollout_id, float(number)),
        event(rollout_id, spans_exported=2, group=group),
    ]


def assert_lineage(made: Bench) -> None:
    """Each raw record stands in one episode's header, and each episode, by its bytes, in one group's."""
    episodes = made.records(Topic.EPISODES)
    named: Counter[tuple[str, int]] = Counter()
    for record in episodes:
        of_episode = made_of(record.headers, MadeOf)
        assert of_episode is not None
        for at, ranges in raw_positions([of_episode.parts]).items():
            named.update((at, offset) for begin, end in ranges for offset in range(begin, end))
    raws = (Topic.OTLP_SPANS, Topic.LLM_CALLS, Topic.REWARDS, Topic.ROLLOUT_EVENTS)
    lie = Counter((f"{topic}/{one.partition}", one.offset) for topic in raws for one in made.records(topic))
    assert named == lie
    groups = [made_of(record.headers, GroupMadeOf) for record in made.records(Topic.TRANSITIONS)]
    digests = sorted(ref.sha256 for group in groups if group is not None for ref in group.episodes)
    assert digests == sorted(hashlib.sha256(record.value or b"").hexdigest() for record in episodes)


def test_three_processes_give_the_transitions_of_the_folds_alone(
    kafka_log: KafkaLog, fresh_topics: Topics, tmp_path: Path
) -> None:
    """Normalize reads four topics with one group; nothing is late, lost or a dead letter."""
    items = [_raw(number) for number in range(2 * NUM_GROUPS)]
    alone = Streams()
    for item in items:
        alone.feed(*item)
    expected = {decode_group(value)[0].group_id: value for value in alone.values(Topic.TRANSITIONS)}
    assert len(expected) == NUM_GROUPS
    with bench(kafka_log, fresh_topics, tmp_path) as made:
        for item in items:
            for topic, value in map(raw, item):
                is_span = topic is Topic.OTLP_SPANS
                key = None if is_span else getattr(item[0], "rollout_id", "").encode()
                sent, headers = let_in(value) if is_span else value, signed_by(RUN_HASH)
                made.writer.append(fresh_topics.name(topic), key=key, value=sent, headers=headers)
        workers = []
        for stage in (Stage.NORMALIZE, Stage.ASSEMBLE, Stage.CREDIT):
            made.stage = stage
            workers.append(made.start(f"{stage.value}-0"))
        made.wait(lambda: len(made.records(Topic.TRANSITIONS)) == NUM_GROUPS, "every group's transitions")
        for stage in (Stage.NORMALIZE, Stage.ASSEMBLE, Stage.CREDIT):
            made.stage = stage
            made.wait(lambda: not made.uncommitted, f"everything committed by {stage.value}")
        assert [worker.terminate() for worker in workers] == [0, 0, 0]
        found = {decode_group(r.value)[0].group_id: r.value for r in made.records(Topic.TRANSITIONS)}
        assert found == expected
        assert {record.partition for record in made.records(Topic.TRANSITIONS)} == {0}
        assert made.records(Topic.DEAD_LETTERS) == []
        assert_lineage(made)
        kinds = {msgspec.json.decode(r.value or b"")["disposition"] for r in made.records(Topic.CLOSED_GROUPS)}
        assert kinds == {"emitted"}
