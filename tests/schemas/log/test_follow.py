"""Reading topics without a group: to their end, and for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import pytest

from tests.memory_log import MemoryLog
from tracegrad.schemas.errors import LogGapError, UnavailableError
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.log.follow import Chunk, decoded, follow, in_thread, read_to_end
from tracegrad.schemas.log.protocol import Offsets, Position, Record, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim
from tracegrad.schemas.topics import Topics

TOPIC = "t"
AT = TopicPartition(TOPIC, 0)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """With a topic of two partitions."""
    memory_log.create_topic(TOPIC, 2)
    return memory_log


def write(log: MemoryLog, *values: bytes, partition: int = 0) -> None:
    """Appends values."""
    writer = log.writer()
    for value in values:
        writer.append(TOPIC, key=None, value=value, partition=partition).result(1)


def values(records: Sequence[Record]) -> list[bytes | None]:
    """What they hold."""
    return [record.value for record in records]


class AwayLog(MemoryLog):
    """A log that is away so many times at each question."""

    def __init__(self) -> None:
        super().__init__()
        self.num_away = 0

    def _answer(self) -> None:
        if self.num_away:
            self.num_away -= 1
            raise UnavailableError("away")

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        self._answer()
        return super().offsets(topic)

    def read(self, positions: dict[TopicPartition, int], max_records: int) -> list[Record]:
        self._answer()
        return super().read(positions, max_records)


@pytest.mark.parametrize("starts", [None, {AT: 1}, {AT: 0}, {AT: 99}], ids=["none", "within", "gone", "beyond"])
def test_a_topic_is_read_to_the_end_that_it_has_at_first(log: MemoryLog, starts: dict[TopicPartition, int]) -> None:
    """Whatever is appended meanwhile; a start that is gone counts as the beginning."""
    write(log, b"a", b"b", b"c")
    write(log, b"x", partition=1)
    log.truncate(TOPIC, 0, begin=1)
    read = []
    for record in read_to_end(log, TOPIC, starts=starts):
        read.append(record.value)
        write(log, b"later")
    assert sorted(map(str, read)) == ["b'x'"] if starts == {AT: 99} else ["b'b'", "b'c'", "b'x'"]


def test_an_end_that_never_comes_is_given_up(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is counted from the last record."""
    write(log, b"a")
    monkeypatch.setattr(log, "read", lambda positions, max_records: [])
    with pytest.raises(UnavailableError, match="got nothing"):
        list(read_to_end(log, TOPIC, patience_s=0.0))


def test_following_goes_on_and_says_where_it_is(log: MemoryLog) -> None:
    """It has caught up with what lay there at the first step, and later records come once."""
    write(log, b"a", b"b", b"c")
    chunks = follow(log, [TOPIC], poll_s=0.0, max_records=2)
    first, second = islice(chunks, 2)
    assert (values(first.records), first.is_caught_up, first.positions[AT]) == ([b"a", b"b"], False, 2)
    assert (values(second.records), second.is_caught_up) == ([b"c"], True)
    assert second.has(Position(TOPIC, 0, 2)) and not second.has(Position(TOPIC, 0, 3))
    write(log, b"d")
    assert [values(chunk.records) for chunk in islice(chunks, 2)] == [[b"d"], []]


def test_a_shared_topic_is_followed_from_where_the_run_began(log: MemoryLog) -> None:
    """What lay there before is not read, also by a second start, which reads all that the run wrote."""
    write(log, b"before")
    starts = {AT: 1, TopicPartition("another", 0): 7}
    for num_written, value in enumerate((b"a", b"b"), 1):
        write(log, value)
        chunk = next(follow(log, [TOPIC], starts=starts, poll_s=0.0))
        assert values(chunk.records) == [b"a", b"b"][:num_written] and chunk.is_caught_up
    assert values(next(follow(log, [TOPIC], poll_s=0.0)).records) == [b"before", b"a", b"b"]
    assert values(next(follow(log, [TOPIC], poll_s=0.0, from_end=[TOPIC])).records) == []


@pytest.mark.parametrize("outside", [2, 6])
def test_a_past_of_the_run_that_retention_has_taken_is_a_gap(log: MemoryLog, outside: int) -> None:
    """Nothing of it may be missing, unless the follower says so; what the run never named may."""
    write(log, *[b"%d" % number for number in range(5)])
    log.truncate(TOPIC, 0, begin=3)
    for starts in ({AT: 3}, {TopicPartition(TOPIC, 1): 0}, None):
        assert values(next(follow(log, [TOPIC], starts=starts, poll_s=0.0)).records) == [b"3", b"4"]
    with pytest.raises(LogGapError):
        next(follow(log, [TOPIC], starts={AT: outside}))
    chunk = next(follow(log, [TOPIC], starts={AT: outside}, may_skip=True, poll_s=0.0))
    assert values(chunk.records) == ([b"3", b"4"] if outside == 2 else [])


def test_a_follower_that_is_overtaken_by_retention_stops_or_skips(log: MemoryLog) -> None:
    """As it was asked to."""
    write(log, b"a", b"b", b"c")
    strict = follow(log, [TOPIC], poll_s=0.0, max_records=1)
    lenient = follow(log, [TOPIC], poll_s=0.0, max_records=1, may_skip=True)
    next(strict), next(lenient)
    log.truncate(TOPIC, 0, begin=2)
    with pytest.raises(LogGapError):
        next(strict)
    assert [values(chunk.records) for chunk in islice(lenient, 2)] == [[], [b"c"]]


def test_a_log_that_is_away_is_waited_for() -> None:
    """At the start and between two reads; nothing is lost or given twice."""
    log = AwayLog()
    log.create_topic(TOPIC, 1)
    write(log, b"a")
    log.num_away = 1
    chunks = follow(log, [TOPIC], poll_s=0.0)
    assert values(next(chunks).records) == [b"a"]
    write(log, b"b")
    log.num_away = 1
    assert values(next(chunks).records) == [b"b"]


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "out-of-patience"])
def test_waiting_for_a_log_that_is_away_has_an_end(is_stopped: bool) -> None:
    """`stop` ends it quietly, patience with the error."""
    log = AwayLog()
    log.num_away = 1_000
    stop = threading.Event()
    chunks = follow(log, [TOPIC], stop=stop, patience_s=None if is_stopped else 0.0)
    if is_stopped:
        threading.Timer(0.02, stop.set).start()
        assert list(chunks) == []
    else:
        with pytest.raises(UnavailableError):
            next(chunks)


def test_an_event_loop_follows_in_a_thread_and_may_be_cancelled(log: MemoryLog) -> None:
    """The reader is closed although its thread was in a read."""
    write(log, b"a")
    is_closed = threading.Event()

    def chunks() -> Any:
        try:
            yield from follow(log, [TOPIC], poll_s=0.05)
        finally:
            is_closed.set()

    async def scenario() -> None:
        found: list[Chunk] = []

        async def collect() -> None:
            async for chunk in in_thread(chunks()):
                found.append(chunk)

        task = asyncio.create_task(collect())
        while not found:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and values(found[0].records) == [b"a"]

    asyncio.run(scenario())
    assert is_closed.is_set()


def test_malformed_records_are_left_out(log: MemoryLog) -> None:
    """The others come with their record, in order."""
    claim = EpochClaim(policy="p", run=RunHash("7c1f3e9a"), epoch=1, trainer_id="t", at_ms=0)
    write(log, b"{", WEIGHTS.encode(claim))
    refusals = Refusals(Topics(run=RunName("test")), Metrics())
    found = decoded(read_to_end(log, TOPIC), {TOPIC: WEIGHTS}, refusals)
    assert [value for _, value in found] == [claim]
