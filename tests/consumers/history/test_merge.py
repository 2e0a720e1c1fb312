"""Several partitions as one stream: in order within each, by time across, to ends that stay where they were."""

from __future__ import annotations

from tests.memory_log import MemoryLog
from tracegrad.consumers.history.replay import merged
from tracegrad.schemas.log.protocol import Offsets, TopicPartition

ONE, OTHER = TopicPartition("one", 0), TopicPartition("other", 1)


class Clocked(MemoryLog):
    """A log whose records are as old as they say."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(clock=lambda: self.now_s)
        self.create_topic("one")
        self.create_topic("other", 2)
        self._append = self.writer().append

    def put(self, where: TopicPartition, at_ms: int) -> None:
        """A record of that time, which it bears as its value."""
        self.now_s = at_ms / 1000
        self._append(where.topic, key=None, value=str(at_ms).encode(), partition=where.partition).result(1)


def read(log: MemoryLog, bounds: dict[TopicPartition, Offsets]) -> list[tuple[str, int]]:
    """Topic and time of each record, in the order in which they come."""
    return [(record.topic, record.timestamp_ms) for record in merged(log, bounds)]


def test_the_earliest_comes_first_and_each_partition_stays_in_order() -> None:
    """A record that a slow writer dates before its neighbour's does not overtake it."""
    log = Clocked()
    for at_ms in (10, 40, 30, 50):
        log.put(ONE, at_ms)
    for at_ms in (20, 35, 60):
        log.put(OTHER, at_ms)
    found = read(log, {ONE: Offsets(0, 4), OTHER: Offsets(0, 3)})
    assert [at for topic, at in found if topic == "one"] == [10, 40, 30, 50]
    assert [at for _, at in found] == [10, 20, 35, 40, 30, 50, 60]


def test_equal_times_come_in_one_order() -> None:
    """What follows is a function of the records: a replay that goes on makes the same again."""
    log = Clocked()
    for where in (OTHER, ONE, OTHER, ONE):
        log.put(where, 5)
    bounds = {OTHER: Offsets(0, 2), ONE: Offsets(0, 2)}
    assert read(log, bounds) == read(log, dict(reversed(bounds.items()))) == [("one", 5)] * 2 + [("other", 5)] * 2


def test_it_ends_though_records_are_appended_for_ever() -> None:
    """Each that is read leads to another one, behind the end; what lies before the begin is left out."""
    log = Clocked()
    for at_ms in range(1000):
        log.put(ONE, at_ms)
    found = []
    for record in merged(log, {ONE: Offsets(10, 990), OTHER: Offsets(0, 0)}):
        found.append(record.offset)
        log.put(ONE, 2000)
        log.put(OTHER, 2000)
    assert found == [*range(10, 990)]


def test_nothing_is_read_where_a_begin_lies_behind_its_end() -> None:
    """As where a time of which no record is left in a partition is asked for."""
    log = Clocked()
    log.put(ONE, 1)
    assert read(log, {ONE: Offsets(1, 0)}) == []
