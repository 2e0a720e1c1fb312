"""What a reader refuses: counted, alarmed, and, where only our own stages write, not passed over for ever."""

from __future__ import annotations

import logging

import pytest

from tracegrad.schemas.errors import RecordError, UnreadableError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.protocol import Record, TopicPartition
from tracegrad.schemas.log.refusals import MAX_IN_A_ROW, Refusals
from tracegrad.schemas.metrics import RECORDS_REFUSED, UNREADABLE_ROWS, Metrics
from tracegrad.schemas.topics import Topic, Topics

TOPICS = Topics(run=RunName("test"))
INTERNAL = (Topic.EPISODE_EVENTS, Topic.CLOSED_EPISODES, Topic.CLOSED_GROUPS, Topic.EPISODES, Topic.TRANSITIONS)
ERROR = RecordError("expected a, got b")


def record(topic: Topic, offset: int, partition: int = 0) -> Record:
    """Of the run."""
    return Record(topic=TOPICS.name(topic), partition=partition, offset=offset, key=None, value=b"x")


@pytest.mark.parametrize("topic", INTERNAL, ids=str)
def test_a_row_on_an_internal_topic_stops_its_stage(topic: Topic) -> None:
    """At the hundredth, and says which offsets; a reader that is not the stage only alarms."""
    stage, view = Refusals(TOPICS, Metrics(), stops=True), Refusals(TOPICS, Metrics())
    for offset in range(7, 7 + MAX_IN_A_ROW - 1):
        assert stage.refuse(record(topic, offset), ERROR)
        assert not view.refuse(record(topic, offset), ERROR)
    with pytest.raises(UnreadableError, match="100 in a row that cannot, offsets 7 to 106"):
        stage.refuse(record(topic, 106), ERROR)
    assert not view.refuse(record(topic, 106), ERROR)


def test_a_record_that_can_be_decoded_ends_the_row_of_its_partition() -> None:
    """And of no other partition."""
    refusals = Refusals(TOPICS, Metrics(), stops=True)
    for offset in range(MAX_IN_A_ROW - 1):
        refusals.refuse(record(Topic.EPISODES, offset), ERROR)
        refusals.refuse(record(Topic.EPISODES, offset, partition=1), ERROR)
    refusals.accept(record(Topic.EPISODES, 99))
    assert list(refusals.rows) == [TopicPartition(TOPICS.name(Topic.EPISODES), 1)]
    refusals.refuse(record(Topic.EPISODES, 100), ERROR)
    with pytest.raises(UnreadableError):
        refusals.refuse(record(Topic.EPISODES, 99, partition=1), ERROR)


def test_a_row_where_others_write_is_an_alarm_every_hundred(caplog: pytest.LogCaptureFixture) -> None:
    """Counted and logged, not a line for each: a flood of garbage is no flood of log lines."""
    metrics = Metrics()
    refusals = Refusals(TOPICS, metrics, stops=True)
    with caplog.at_level(logging.WARNING):
        for offset in range(3 * MAX_IN_A_ROW):
            assert not refusals.refuse(record(Topic.REWARDS, offset), ERROR)
    assert metrics.value(RECORDS_REFUSED, TOPICS.name(Topic.REWARDS), "malformed") == 3 * MAX_IN_A_ROW
    assert metrics.value(UNREADABLE_ROWS) == 3
    assert [entry.levelname for entry in caplog.records] == ["WARNING", "ERROR", "ERROR", "ERROR"]
