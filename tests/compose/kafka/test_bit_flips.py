"""Segments that are not as the broker wrote them: readers of history name damage, and of one that was cut the end."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.cimpl import NewTopic

from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.consumers.history.replay import merged
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import TopicPartition

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
NUM = 60
ROUNDS, IN_A_ROUND = 4, 5
COVERED = 21
"""Bytes of a batch before `attributes`, from which on its checksum covers all."""
NUM_RECORDS = ROUNDS * IN_A_ROUND


def batches(segment: bytes | bytearray) -> list[tuple[int, int, int]]:
    """(place, size, first offset) of each."""
    found, at = [], 0
    while at < len(segment):
        base, length = struct.unpack_from(">qi", segment, at)
        found.append((at, length + 12, base))
        at += length + 12
    return found


def segment_of(data_dir: Path, topic: str) -> Path:
    """The one that a partition has."""
    (found,) = (data_dir / "log").glob(f"{topic}-0/*.log")
    return found


@pytest.fixture
def broker(tmp_path: Path) -> LocalKafka:
    """One that wrote some batches to each of many topics, and has stopped."""
    with LocalKafka(tmp_path) as broker:
        log = KafkaLog(broker.bootstrap_servers)
        topics = [f"t{number}" for number in range(NUM)]
        log.admin.create_topics([NewTopic(name, 1, 1) for name in topics])
        log.admin.partition_counts(topics)
        writer = log.writer()
        for number in range(ROUNDS):
            value = Random(number).randbytes(50)
            futures = [writer.append(name, key=b"k", value=value) for name in topics for _ in range(IN_A_ROUND)]
            for future in futures:
                future.result(30)
        writer.close()
    return broker


def test_each_flipped_bit_is_found_with_topic_partition_and_offset(broker: LocalKafka) -> None:
    """Any bit that the checksum of any batch covers: what comes before is whole, and from the batch's first offset on
    it is said to be damaged."""
    begins = {}
    for number in range(NUM):
        segment, random = segment_of(broker.data_dir, f"t{number}"), Random(number)
        data = bytearray(segment.read_bytes())
        # Of the last batch the header says where the log ends: the test below.
        place, size, begins[f"t{number}"] = random.choice(batches(data)[:-1])
        data[random.randrange(place + COVERED, place + size)] ^= 1 << random.randrange(8)
        segment.write_bytes(data)
    with broker:
        log = KafkaLog(broker.bootstrap_servers, is_history=True)
        found = {}
        for topic in begins:
            where = TopicPartition(topic, 0)
            with pytest.raises(RecordError) as told:
                list(merged(log, {where: log.offsets(topic)[0]}))
            found[topic] = str(told.value)
            assert told.value.reason == "damaged"
    for topic, begin in begins.items():
        assert f"expected to read '{topic}' partition 0 offset {begin}, got" in found[topic]
        assert f"a record from {begin} on is not as it was written; put the segment back from a copy" in found[topic]
    assert len(found) == NUM


def test_a_segment_that_was_cut_ends_earlier_and_what_is_left_is_whole(broker: LocalKafka) -> None:
    """In the middle of its last batch: nothing is damaged, so only who knows how much there was can tell."""
    segment = segment_of(broker.data_dir, "t0")
    data = segment.read_bytes()
    place, size, base = batches(data)[-1]
    segment.write_bytes(data[: place + size // 2])
    with broker:
        log = KafkaLog(broker.bootstrap_servers, is_history=True)
        at = log.offsets("t0")[0]
        assert at.end == base < NUM_RECORDS
        assert [record.offset for record in merged(log, {TopicPartition("t0", 0): at})] == [*range(base)]
