"""Following a topic that earlier runs have filled."""

from __future__ import annotations

import pytest

from tests.memory_log import MemoryLog
from tests.producers.runner.rig import RUN_HASH, TOPICS, rollout_of
from tracegrad.producers.rollout_records import event_of
from tracegrad.schemas.errors import LogGapError
from tracegrad.schemas.ids import group_id
from tracegrad.schemas.log.follow import Tail
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, GroupRef, RolloutRequest, RolloutState
from tracegrad.schemas.topics import Topic

EVENTS = TOPICS.name(Topic.ROLLOUT_EVENTS)


def test_a_shared_topic_is_followed_from_where_the_run_began(memory_log: MemoryLog) -> None:
    """What lay there before is not read, also by a second start, which reads all that the run wrote."""
    memory_log.create_topics(TOPICS, policies=["policy"])
    writer = memory_log.writer()
    group = GroupRef(id=group_id(RUN_HASH, "train", 0), size=1, member=0, index=0)
    request = RolloutRequest(
        rollout_id=rollout_of(0), group=group, task_id="0", input="", policy="policy", purpose=Purpose.TRAIN
    )

    def write(attempt: str) -> None:
        event = event_of(request, attempt, 0, RolloutState.STARTED)
        writer.append(EVENTS, key=b"k", value=ROLLOUT_EVENTS.encode(event)).result(5)

    for attempt in ("0001", "0002"):
        write(attempt)
    starts = {TopicPartition(EVENTS, number): kept.end for number, kept in memory_log.offsets(EVENTS).items()}
    for attempt in ("0003", "0004"):
        write(attempt)
        tail = Tail(memory_log, {EVENTS: ROLLOUT_EVENTS}, starts=starts)
        assert not tail.caught_up
        read = [event.attempt_id for _, event in tail.read(0.1)]
        tail.settle()
        assert tail.caught_up and read == ["0003", "0004"][: len(read)] and read[-1] == attempt
        tail.close()
    everything = Tail(memory_log, {EVENTS: ROLLOUT_EVENTS})
    assert len(everything.read(0.1)) == 4
    everything.close()


def test_a_past_of_the_run_that_retention_has_taken_is_a_gap(memory_log: MemoryLog) -> None:
    """Nothing of it may be missing; what lay there before the run may, and so may what the run never named."""
    memory_log.create_topics(TOPICS, policies=["policy"])
    writer = memory_log.writer()
    for _ in range(5):
        writer.append(EVENTS, key=None, value=b"", partition=0).result(5)
    memory_log.truncate(EVENTS, 0, begin=3)
    codecs = {EVENTS: ROLLOUT_EVENTS}
    for starts in ({TopicPartition(EVENTS, 0): 3}, {TopicPartition(EVENTS, 1): 0}, None):
        Tail(memory_log, codecs, starts=starts).close()
    for outside in (2, 6):
        with pytest.raises(LogGapError):
            Tail(memory_log, codecs, starts={TopicPartition(EVENTS, 0): outside})
