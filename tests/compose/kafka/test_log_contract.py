"""One contract for every Log: the in-memory twin and Apache Kafka behave alike."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka.cimpl import NewTopic

from tests.compose.kafka import reading
from tests.compose.kafka.reading import read
from tests.memory_log import MemoryLog
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.writer import partition_for
from tracegrad.schemas.errors import ConfigurationError, LogGapError, RecordError, UnavailableError
from tracegrad.schemas.log.protocol import Log, LogReader, Offsets, Position, Record, TopicPartition
from tracegrad.schemas.topics import MAX_MESSAGE_BYTES

Maker = Callable[[int], str]
DEADLINE_S = 20.0


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def log(request: pytest.FixtureRequest) -> Log:
    """Each implementation in turn."""
    chosen: Log = request.getfixturevalue(f"{request.param}_log")
    return chosen


@pytest.fixture
def new_topic(log: Log) -> Maker:
    """Makes a topic of a fresh name with so many partitions."""

    def make(partitions: int) -> str:
        if isinstance(log, KafkaLog):
            return reading.new_topic(log, partitions, **{"max.message.bytes": str(MAX_MESSAGE_BYTES)})
        assert isinstance(log, MemoryLog)
        log.create_topic(name := f"topic-{uuid.uuid4().hex[:12]}", partitions)
        return name

    return make


@pytest.fixture
def closing() -> Iterator[list[LogReader]]:
    """Readers that are closed after the test, whatever happens in it."""
    readers: list[LogReader] = []
    yield readers
    for reader in readers:
        reader.close()


def write(log: Log, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> list[Position]:
    """Appends values under their own bytes as keys, and waits."""
    writer = log.writer()
    futures = [writer.append(topic, key=value, value=value, partition=partition) for value in values]
    positions = [future.result(DEADLINE_S) for future in futures]
    writer.close()
    return positions


def begins(log: Log, topic: str) -> dict[TopicPartition, int]:
    """Where a topic's partitions begin, to tail them from there."""
    return {TopicPartition(topic, number): kept.begin for number, kept in log.offsets(topic).items()}


def wait_for_assignment(readers: Sequence[LogReader], counts: Sequence[int]) -> None:
    """Reads (nothing) until each reader owns so many partitions."""
    deadline = time.monotonic() + DEADLINE_S
    while [len(reader.positions()) for reader in readers] != list(counts):
        assert time.monotonic() < deadline, [dict(reader.positions()) for reader in readers]
        for reader in readers:
            assert not reader.read(timeout_s=0.05)


def test_future_tells_where_the_record_lies(log: Log, new_topic: Maker) -> None:
    """Offsets grow by one within a partition, and `offsets` agrees."""
    topic = new_topic(2)
    positions = write(log, topic, [b"a", b"b", b"c"], partition=1)
    assert positions == [Position(topic, 1, 0), Position(topic, 1, 1), Position(topic, 1, 2)]
    assert log.offsets(topic) == {0: Offsets(0, 0), 1: Offsets(0, 3)}


def test_record_comes_back_as_it_was_written(log: Log, new_topic: Maker, closing: list[LogReader]) -> None:
    """Key, value and headers survive, repeated header names and null values too."""
    topic = new_topic(1)
    headers = (("tracegrad.reason", b"malformed"), ("x", b""), ("x", b"\xff"))
    writer = log.writer()
    writer.append(topic, key=None, value=b"v", headers=headers)
    writer.append(topic, key=b"k", value=None).result(DEADLINE_S)
    writer.close()
    closing.append(log.tail(begins(log, topic)))
    first, second = read(closing[0], 2)
    assert (first.key, first.value, first.headers) == (None, b"v", headers)
    assert (second.key, second.value, second.headers) == (b"k", None, ())
    assert first.timestamp_ms > 1_600_000_000_000
    assert second.position == Position(topic, 0, 1)


def test_a_record_says_the_time_that_it_is_given(log: Log, new_topic: Maker, closing: list[LogReader]) -> None:
    """What is older than the log keeps its own time; without one it is the writer's present."""
    topic = new_topic(1)
    writer, before_ms = log.writer(), int(time.time() * 1000)
    for given in (1_700_000_000_123, None):
        writer.append(topic, key=b"k", value=b"v", timestamp_ms=given).result(DEADLINE_S)
    writer.close()
    closing.append(reader := log.tail({TopicPartition(topic, 0): 0}))
    first, second = read(reader, 2)
    assert first.timestamp_ms == 1_700_000_000_123
    assert second.timestamp_ms >= before_ms


def test_keys_are_placed_by_murmur2(log: Log, new_topic: Maker) -> None:
    """All writers agree with Java's and aiokafka's default partitioner."""
    topic = new_topic(5)
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"1f2e3d4c5b6a7988aabbccddeeff", *(str(i).encode() for i in range(50))]
    positions = write(log, topic, keys)
    assert [position.partition for position in positions] == [partition_for(key, 5) for key in keys]


def test_tail_starts_where_it_is_told(log: Log, new_topic: Maker, closing: list[LogReader]) -> None:
    """Beginning, end, or chosen offsets of chosen partitions."""
    topic = new_topic(2)
    write(log, topic, [b"0", b"1", b"2"], partition=0)
    write(log, topic, [b"x"], partition=1)
    closing.append(log.tail(begins(log, topic)))
    closing.append(log.tail({TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 1}))
    closing.append(log.tail({TopicPartition(topic, 0): 2}))
    assert sorted(record.value or b"" for record in read(closing[0], 4)) == [b"0", b"1", b"2", b"x"]
    assert closing[0].positions() == {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 1}
    assert [record.value for record in read(closing[2], 1)] == [b"2"]
    assert closing[2].positions() == {TopicPartition(topic, 0): 3}
    assert not closing[1].read(timeout_s=0.05)
    write(log, topic, [b"new"], partition=1)
    assert [record.value for record in read(closing[1], 1)] == [b"new"]


def test_read_gives_at_most_so_many(log: Log, new_topic: Maker, closing: list[LogReader]) -> None:
    """A bound on the batch is kept, order within a partition too."""
    topic = new_topic(1)
    values = [str(i).encode() for i in range(25)]
    write(log, topic, values)
    reader = log.tail(begins(log, topic))
    closing.append(reader)
    found: list[Record] = []
    while len(found) < 25:
        batch = reader.read(max_records=10, timeout_s=30.0)
        assert 0 < len(batch) <= 10
        found += batch
    assert [record.value for record in found] == values


def test_read_ends_with_the_first_record_that_comes(log: Log, new_topic: Maker, closing: list[LogReader]) -> None:
    """It does not wait out its time for more, and what came with the first is there too."""
    topic = new_topic(1)
    closing.append(log.tail(begins(log, topic)))
    assert not closing[0].read(timeout_s=0.05)
    write(log, topic, [b"%d" % number for number in range(50)])
    began = time.monotonic()
    first = read(closing[0], 1)
    first_s = time.monotonic() - began
    assert len(first) > 0
    read(closing[0], 50 - len(first))
    write(log, topic, [b"one"])
    began = time.monotonic()
    assert [record.value for record in closing[0].read(timeout_s=DEADLINE_S)] == [b"one"]
    assert max(first_s, time.monotonic() - began) < DEADLINE_S / 2


def test_offset_outside_the_log_is_a_gap(log: Log, new_topic: Maker) -> None:
    """Never a silent jump to another offset."""
    topic = new_topic(1)
    write(log, topic, [b"a"])
    with pytest.raises(LogGapError, match="got \\[0, 1\\]"):
        log.tail({TopicPartition(topic, 0): 2})


def test_unknown_partition_is_a_configuration_error(log: Log, new_topic: Maker) -> None:
    """For a reader and for a writer."""
    topic = new_topic(1)
    with pytest.raises(ConfigurationError):
        log.tail({TopicPartition(topic, 7): 0})
    writer = log.writer()
    with pytest.raises(ConfigurationError):
        writer.append(topic, key=None, value=b"v", partition=7).result(DEADLINE_S)
    writer.close()


def test_unknown_topic_is_a_configuration_error(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is created by itself; the writer says so soon, not after the delivery time-out."""
    monkeypatch.setattr(getattr(log, "admin", log), "_unknown_s", 0.3, raising=False)
    for ask in (
        lambda: log.tail({TopicPartition("nowhere", 0): 0}),
        lambda: log.join("group", ["nowhere"]),
        lambda: log.offsets("nowhere"),
        lambda: log.committed("group", "nowhere"),
    ):
        with pytest.raises(ConfigurationError, match="nowhere"):
            ask()
    writer = log.writer()
    with pytest.raises(ConfigurationError, match="nowhere"):
        writer.append("nowhere", key=None, value=b"v").result(DEADLINE_S)
    writer.close()


def test_record_too_large_is_refused_alone(log: Log, new_topic: Maker) -> None:
    """Its neighbours go through."""
    topic = new_topic(1)
    writer = log.writer()
    # Brokers count compressed bytes.
    large = writer.append(topic, key=None, value=os.urandom(MAX_MESSAGE_BYTES + 1))
    small = writer.append(topic, key=None, value=os.urandom(MAX_MESSAGE_BYTES - 2048))
    with pytest.raises(RecordError) as caught:
        large.result(DEADLINE_S)
    assert caught.value.reason == "too_large"
    assert small.result(DEADLINE_S).offset == 0
    writer.close()


def test_closed_writer_refuses(log: Log, new_topic: Maker) -> None:
    """No future waits for ever."""
    topic = new_topic(1)
    writer = log.writer()
    writer.close()
    writer.close()
    with pytest.raises(UnavailableError):
        writer.append(topic, key=None, value=b"v").result(DEADLINE_S)


async def test_append_is_awaited_from_async_code(log: Log, new_topic: Maker) -> None:
    """And an await that is abandoned breaks nothing."""
    topic = new_topic(1)
    writer = log.writer()
    abandoned = asyncio.ensure_future(asyncio.wrap_future(writer.append(topic, key=None, value=b"1")))
    abandoned.cancel()
    position = await asyncio.wrap_future(writer.append(topic, key=None, value=b"2"))
    assert position == Position(topic, 0, 1)
    await asyncio.to_thread(writer.close)


def test_group_starts_at_the_beginning_then_at_its_commit(log: Log, new_topic: Maker, closing: list[LogReader]) -> None:
    """Nothing is committed but what `commit` was told."""
    topic, group = new_topic(1), f"group-{uuid.uuid4().hex[:8]}"
    write(log, topic, [b"a", b"b", b"c"])
    assert log.committed(group, topic) == {}
    first = log.join(group, [topic])
    closing.append(first)
    assert [record.value for record in read(first, 3)] == [b"a", b"b", b"c"]
    assert first.positions() == {TopicPartition(topic, 0): 3}
    first.commit({TopicPartition(topic, 0): 1})
    assert log.committed(group, topic) == {0: 1}
    first.close()
    assert log.committed(group, topic) == {0: 1}
    second = log.join(group, [topic])
    closing.append(second)
    assert [record.value for record in read(second, 2)] == [b"b", b"c"]


def test_a_topic_that_is_made_anew_has_another_id(log: Log, new_topic: Maker) -> None:
    """By its name and its offsets nobody could tell."""
    topic, other = new_topic(2), new_topic(1)
    before = log.topic_id(topic)
    assert before
    assert before == log.topic_id(topic) != log.topic_id(other)
    if isinstance(log, MemoryLog):
        log.recreate_topic(topic)
    else:
        assert isinstance(log, KafkaLog)
        recreate(log, topic, 2)
    assert log.topic_id(topic) not in ("", before)
    assert log.offsets(topic) == {0: Offsets(0, 0), 1: Offsets(0, 0)}


def recreate(log: KafkaLog, topic: str, partitions: int) -> None:
    """Deletes a topic and makes it anew, as soon as the broker lets it."""
    for future in log.admin._client.delete_topics([topic]).values():
        future.result(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while log.admin.create_topics([NewTopic(topic, partitions, 1, config={})]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    log.admin.partition_counts([topic])


def test_two_members_share_and_each_tells_only_its_own(log: Log, new_topic: Maker, closing: list[LogReader]) -> None:
    """A commit for a partition that moved away is left out, so that the new owner's offset never goes back."""
    topic, group = new_topic(4), f"group-{uuid.uuid4().hex[:8]}"
    first = log.join(group, [topic])
    closing.append(first)
    wait_for_assignment([first], [4])
    second = log.join(group, [topic])
    closing.append(second)
    wait_for_assignment([first, second], [2, 2])
    assert not set(first.positions()) & set(second.positions())
    for partition in range(4):
        write(log, topic, [b"v"], partition=partition)
    assert len(read(first, 2)) == 2
    assert len(read(second, 2)) == 2
    first.commit({TopicPartition(topic, partition): 1 for partition in range(4)})
    assert set(log.committed(group, topic)) == {where.partition for where in first.positions()}
    second.close()
    wait_for_partitions(first, 4)


def wait_for_partitions(reader: LogReader, count: int) -> None:
    """Reads until the reader owns so many; un-committed records of the leaver come again."""
    deadline = time.monotonic() + DEADLINE_S
    while len(reader.positions()) != count:
        assert time.monotonic() < deadline
        reader.read(timeout_s=0.05)


def test_tail_reader_cannot_commit(log: Log, new_topic: Maker, closing: list[LogReader]) -> None:
    """It has no group."""
    topic = new_topic(1)
    closing.append(log.tail(begins(log, topic)))
    with pytest.raises(ConfigurationError):
        closing[0].commit({TopicPartition(topic, 0): 0})
