"""What the worker checks against the log, and the files that its neighbours read. No broker."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tracegrad.schemas.errors import ConfigurationError, LogGapError, UnavailableError
from tracegrad.schemas.log import Position, TopicPartition
from tracegrad.schemas.topics import Stage
from tracegrad.streams import instance
from tracegrad.streams.heartbeat import Heartbeat, Status
from tracegrad.streams.instance import PoisonList, hold_instance
from tracegrad.streams.liveness import Liveness, check_partitions, group_starts, refuse_skipped

WHERE = TopicPartition("events", 0)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """Ten records in partition 0 of two."""
    memory_log.create_topic("events", partitions=2)
    writer = memory_log.writer()
    for n in range(10):
        writer.append("events", key=b"k", value=b"%d" % n, partition=0)
    return memory_log


def test_group_starts_are_the_committed_offsets_else_the_beginning(log: MemoryLog) -> None:
    """Partition 1 has no commit yet."""
    log.groups["g"][WHERE] = 4
    assert group_starts(log, "g", ["events"]) == {WHERE: 4, TopicPartition("events", 1): 0}


@pytest.mark.parametrize("committed", [2, 11], ids=["below the start", "past the end"])
def test_a_committed_offset_outside_the_log_is_a_gap(log: MemoryLog, committed: int) -> None:
    """Either records were deleted before they were read, or the topic was made anew."""
    log.truncate("events", 0, begin=5)
    log.groups["g"][WHERE] = committed
    with pytest.raises(LogGapError, match="start a new run"):
        group_starts(log, "g", ["events"])


def test_unequal_partition_counts_are_refused(log: MemoryLog) -> None:
    """Markers are found by the input's partition number."""
    check_partitions(log, ["events"], 2)
    with pytest.raises(ConfigurationError, match="expected 4 partitions"):
        check_partitions(log, ["events"], 4)


def test_a_record_that_was_passed_over_ends_the_process(log: MemoryLog) -> None:
    """3 was expected, 5 came, and 3 lies on the log."""
    with pytest.raises(UnavailableError, match="passed over"):
        refuse_skipped(log, WHERE, expected=3, delivered=5)


def test_a_jump_over_deleted_records_is_a_gap(log: MemoryLog) -> None:
    """Retention overtook the worker while it ran."""
    log.truncate("events", 0, begin=5)
    with pytest.raises(LogGapError):
        refuse_skipped(log, WHERE, expected=3, delivered=5)


def test_a_position_that_stands_still_under_lag_ends_the_process(log: MemoryLog) -> None:
    """Progress, or being at the end, starts the clock anew; committed offsets are never asked."""
    liveness = Liveness(log, stall_s=10)
    assert liveness.check({WHERE: 3}, 0.0) == {WHERE: 7}
    assert liveness.check({WHERE: 4}, 9.0) == {WHERE: 6}
    assert liveness.check({WHERE: 4}, 18.0) == {WHERE: 6}
    with pytest.raises(UnavailableError, match="standing still"):
        liveness.check({WHERE: 4}, 19.5)
    assert liveness.check({WHERE: 10}, 20.0) == {WHERE: 0}
    assert liveness.check({WHERE: 10}, 99.0) == {WHERE: 0}


def test_a_position_past_the_logs_end_is_a_gap(log: MemoryLog) -> None:
    """The topic was deleted and made anew under the worker."""
    with pytest.raises(LogGapError, match="made anew"):
        Liveness(log, stall_s=10).check({WHERE: 11}, 0.0)


def test_an_assignment_that_never_comes_ends_the_process(log: MemoryLog) -> None:
    """None means that the worker waits; having had positions in between starts the clock anew."""
    liveness = Liveness(log, stall_s=10)
    liveness.check(None, 0.0)
    liveness.check({}, 9.0)
    liveness.check(None, 12.0)
    liveness.check(None, 21.0)
    with pytest.raises(UnavailableError, match="assignment"):
        liveness.check(None, 22.5)


def test_an_instance_id_is_held_by_one_process_and_free_again_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is per stage and id; a dynamic member needs none."""
    monkeypatch.setattr(instance, "_LOCK_WAIT_S", 0.0)
    with hold_instance(tmp_path, Stage.CREDIT, "0"):
        with hold_instance(tmp_path, Stage.ASSEMBLE, "0"), hold_instance(tmp_path, Stage.CREDIT, None):
            pass
        with (
            pytest.raises(ConfigurationError, match="held by another process"),
            hold_instance(tmp_path, Stage.CREDIT, "0"),
        ):
            pass
    with hold_instance(tmp_path, Stage.CREDIT, "0"):
        pass


def test_a_position_is_poison_after_three_ends_counted_across_processes(tmp_path: Path) -> None:
    """Each count is made by a list of its own, as a restarted process would."""
    position = Position("a.run.events", 1, 42)
    for count in (1, 2, 3):
        poison = PoisonList(tmp_path, Stage.ASSEMBLE)
        poison.load()
        assert position not in poison
        assert poison.add(position) == count
    poison.load()
    assert position in poison
    assert Position("a.run.events", 1, 43) not in poison


def test_heartbeat_is_a_whole_document_and_goes_with_a_clean_stop(tmp_path: Path) -> None:
    """`tracegrad status` reads it at any time."""
    heartbeat = Heartbeat(tmp_path, Stage.ASSEMBLE, "0")
    status = Status(
        stage="assemble",
        instance_id="0",
        pid=os.getpid(),
        at_s=1.0,
        is_ready=True,
        assigned={"events": [0, 1]},
        records=3,
        emissions=2,
        in_flight=1,
        open=1,
        ranges=1,
        lag=0,
        dead_letters=0,
        shell={},
        outputs={},
        fold={},
    )
    heartbeat.write(status)
    path = tmp_path / "status" / "streams-assemble-0.json"
    assert msgspec.json.decode(path.read_bytes(), type=Status) == status
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    heartbeat.remove()
    assert not path.exists()
