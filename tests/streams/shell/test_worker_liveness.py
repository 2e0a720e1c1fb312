"""What the worker checks against the log, and the files that its neighbours read. No broker."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.memory_log import MemoryLog
from tests.streams.shell.counting_fold import CountingFold
from tracegrad.schemas.errors import ConfigurationError, LogGapError, UnavailableError
from tracegrad.schemas.fold import Emission
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.protocol import Position, Record, TopicPartition
from tracegrad.schemas.metrics import DELIVERIES_DROPPED, OFFSETS_WITHOUT_RECORD, Metrics
from tracegrad.schemas.topics import Stage, Topics
from tracegrad.streams.shell import worker
from tracegrad.streams.shell.config import StreamsHandles
from tracegrad.streams.shell.liveness import Liveness, check_partitions, group_starts
from tracegrad.streams.shell.poison import PoisonList

WHERE = TopicPartition("events", 0)


class _HoledLog(MemoryLog):
    """Shows no record at some offsets, as after compaction; or none at all, as a broker that does not answer."""

    def __init__(self, holes: Collection[int]) -> None:
        super().__init__()
        self.holes = holes
        self.num_tails = 0
        self.create_topic("events", partitions=2)
        writer = self.writer()
        for n in range(10):
            writer.append("events", key=b"k", value=b"%d" % n, partition=0)

    def tail(self, starts: Mapping[TopicPartition, int]) -> Any:
        self.num_tails += 1
        return super().tail(starts)

    def read(self, positions: dict[TopicPartition, int], max_records: int) -> list[Record]:
        while taken := super().read(positions, max_records):
            if found := [record for record in taken if record.offset not in self.holes]:
                return found
        return []


@pytest.fixture
def log() -> _HoledLog:
    """Without a hole."""
    return _HoledLog(())


def test_group_starts_are_the_committed_offsets_else_0(log: MemoryLog) -> None:
    """Partition 1 has no commit yet."""
    log.groups["g"][WHERE] = 4
    assert group_starts(log, "g", ["events"]) == {WHERE: 4, TopicPartition("events", 1): 0}


@pytest.mark.parametrize("committed", [2, 11, None], ids=["below the start", "past the end", "forgotten"])
def test_a_committed_offset_outside_the_log_is_a_gap(log: MemoryLog, committed: int | None) -> None:
    """Either records were deleted before they were read, or the log has lost its end, or nobody knows what was read."""
    log.truncate("events", 0, begin=5)
    if committed is not None:
        log.groups["g"][WHERE] = committed
    with pytest.raises(LogGapError, match="start the run again"):
        group_starts(log, "g", ["events"])


def test_unequal_partition_counts_are_refused(log: MemoryLog) -> None:
    """Markers are found by the input's partition number."""
    check_partitions(log, ["events"], 2)
    with pytest.raises(ConfigurationError, match="expected 4 partitions"):
        check_partitions(log, ["events"], 4)


def test_a_record_that_was_passed_over_ends_the_process(log: MemoryLog) -> None:
    """3 was expected, 5 came, and 3 lies on the log."""
    with pytest.raises(UnavailableError, match="passed over"):
        Liveness(log).refuse_skipped(WHERE, expected=3, delivered=5)


def test_a_jump_over_deleted_records_is_a_gap(log: MemoryLog) -> None:
    """Retention overtook the worker while it ran."""
    log.truncate("events", 0, begin=5)
    with pytest.raises(LogGapError):
        Liveness(log).refuse_skipped(WHERE, expected=3, delivered=5)


@pytest.mark.slow
def test_a_jump_that_the_broker_does_not_explain_ends_the_process() -> None:
    """No answer in time is no proof that nothing lies there; what was passed over must not be committed past."""
    with pytest.raises(UnavailableError, match="got none from 3 on"):
        Liveness(_HoledLog(range(10)), look_s=0.01).refuse_skipped(WHERE, expected=3, delivered=5)


def test_a_jump_over_a_hole_is_harmless_and_one_look_serves_many() -> None:
    """A topic written in transactions has a hole for each; none of them hides a record that was passed over."""
    log = _HoledLog({3, 5, 7})
    liveness = Liveness(log)
    for expected in (3, 5, 7):
        liveness.refuse_skipped(WHERE, expected=expected, delivered=expected + 1)
    assert log.num_tails == 1
    with pytest.raises(UnavailableError, match=r"expected offset 8 .* passed over"):
        liveness.refuse_skipped(WHERE, expected=7, delivered=9)


class _Seam:
    """A Faust app that calls every message current but those that are marked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def is_current(self, message: Any) -> bool:
        return not message.is_stale


def message(offset: int, *, is_stale: bool = False) -> Any:
    """As Faust hands it over."""
    fields: dict[str, Any] = {**WHERE._asdict(), "offset": offset, "key": b"k", "value": b"v", "headers": None}
    return SimpleNamespace(**fields, timestamp=0.0, is_stale=is_stale)


class _Nothing(CountingFold):
    """A fold that is done with each record at once."""

    marker_topic = None

    def __init__(self) -> None:
        super().__init__()
        self.folded: list[int] = []

    def fold(self, record: Record) -> Emission:
        self.folded.append(record.offset)
        return Emission(done=(record.position,))


def ready(folder: Path, fold: _Nothing, log: MemoryLog, **handles: Any) -> worker._Worker:
    """A worker that has its partitions."""
    given = StreamsHandles(bootstrap_servers="127.0.0.1:1", data_dir=str(folder), partitions=4, **handles)
    made = worker._Worker(fold, given, Topics(run=RunName("run")), log, log.writer(), Metrics(), lambda: None)
    made._assignment.is_ready = True
    return made


@pytest.fixture
async def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> worker._Worker:
    """A worker without Faust, on a log with a hole at offsets 1 and 2."""
    monkeypatch.setattr(worker, "FaustSeam", _Seam)
    return ready(tmp_path, _Nothing(), _HoledLog({1, 2}))


async def test_what_is_delivered_again_or_late_is_dropped_and_holes_are_counted(shell: worker._Worker) -> None:
    """By an assignment as Faust hands it messages; each record is folded once."""
    for offset, is_stale in ((0, False), (3, False), (3, False), (4, True)):
        await shell._assignment.on_message(message(offset, is_stale=is_stale))
    assert isinstance(shell._fold, _Nothing) and shell._fold.folded == [0, 3]
    assert shell._metrics.value(OFFSETS_WITHOUT_RECORD) == 2
    assert [shell._metrics.value(DELIVERIES_DROPPED, why) for why in ("again", "stale")] == [1, 1]


@pytest.mark.parametrize("error", [LogGapError("gone"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_a_take_over_that_is_not_ended_ends_the_worker(
    shell: worker._Worker, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Faust logs what a signal's handler raises, and would go on without the markers."""

    async def fails(epoch: int) -> None:
        raise error

    monkeypatch.setattr(shell._assignment, "_take_over", fails)
    with contextlib.suppress(asyncio.CancelledError):
        await shell._assignment.on_rebalance_complete()
    assert not shell._assignment.is_ready
    with pytest.raises(LogGapError if isinstance(error, LogGapError) else UnavailableError):
        shell._failure.result()


async def test_a_record_passed_over_after_a_real_hole_ends_the_worker(shell: worker._Worker) -> None:
    """One hole says nothing of the next jump in the same topic."""
    assignment = shell._assignment
    await assignment.on_revoked()
    assignment.is_ready = True
    for offset in (0, 3):
        await assignment.on_message(message(offset))
    with pytest.raises(UnavailableError, match=r"expected offset 4 .* passed over"):
        await assignment.on_message(message(5))
    assert shell._ledger.next_offset(WHERE) == 4


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


@pytest.mark.parametrize("is_after_a_kill", [True, False])
async def test_a_worker_after_a_kill_marks_what_it_folds_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_after_a_kill: bool
) -> None:
    """While it folds, and at no other time; a worker that ends in order leaves nothing to be marked for."""
    life = tmp_path / "life-assemble-0"
    seen: list[bytes] = []

    class Watching(_Nothing):
        def fold(self, record: Record) -> Emission:
            seen.append(life.read_bytes().rstrip())
            return super().fold(record)

    monkeypatch.setattr(worker, "FaustSeam", _Seam)
    if is_after_a_kill:
        life.write_bytes(b"alive")
    made = ready(tmp_path, Watching(), _HoledLog(()), instance_id="assemble-0")
    for offset in (0, 1):
        await made._assignment.on_message(message(offset))
    marks = [b'["events",0,0]', b'["events",0,1]'] if is_after_a_kill else [b"alive", b"alive"]
    assert (seen, life.read_bytes().rstrip()) == (marks, b"alive")
    made._assignment.poison.close()
    assert life.read_bytes().strip() == b""


def test_a_position_is_poison_after_three_ends_counted_across_processes(tmp_path: Path) -> None:
    """Each count is made by a list of its own, as a restarted process would."""
    position = Position("a.run.events", 1, 42)
    for count in (1, 2, 3):
        poison = PoisonList(tmp_path, Stage.ASSEMBLE)
        poison.load()
        assert position not in poison
        assert poison.add_end(position) == count
    poison.load()
    assert position in poison
    assert Position("a.run.events", 1, 43) not in poison


FOLDER_THAT_DIES = """
import os, pathlib, signal, sys
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.topics import Stage
from tracegrad.streams.shell.poison import PoisonList

poison, dies_on = PoisonList(pathlib.Path(sys.argv[1]), Stage.ASSEMBLE, worker="assemble-0"), int(sys.argv[2])
poison.load()
for offset in range(40, 45):
    position = Position("a.run.events", 1, offset)
    if position not in poison:
        with poison.folding(position):
            os.kill(os.getpid(), signal.SIGKILL) if offset == dies_on else None
os.kill(os.getpid(), signal.SIGKILL) if dies_on else poison.close()
"""


@pytest.mark.slow
def test_a_position_at_which_workers_are_killed_is_poison_and_its_neighbours_are_not(tmp_path: Path) -> None:
    """By a signal, which leaves no time to say so; a kill between two records is nobody's doing, an end in order is
    forgotten."""

    def work(dies_on: int) -> int:
        argv = (sys.executable, "-c", FOLDER_THAT_DIES, str(tmp_path), str(dies_on))
        return subprocess.run(argv, timeout=60, check=False).returncode

    def poison() -> list[int]:
        known = PoisonList(tmp_path, Stage.ASSEMBLE)
        known.load()
        return [offset for offset in range(40, 45) if Position("a.run.events", 1, offset) in known]

    assert [work(dies_on) for dies_on in (-1, -1, -1, 0)] == [-signal.SIGKILL] * 3 + [0]
    assert not (tmp_path / "poison-assemble.jsonl").exists()
    for _ in range(4):
        assert poison() == []
        assert work(42) == -signal.SIGKILL
    assert work(0) == 0
    assert poison() == [42]
