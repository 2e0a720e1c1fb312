"""The log that rooms are handed: it signs what they write and leaves out what does not verify."""

from __future__ import annotations

import logging

import pytest

from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, TOPICS, rollout
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.follow import follow, read_to_end
from tracegrad.schemas.log.mac import MAC_HEADER, SIGNED, VOUCHED, KeyRing, signer_of
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.log.signed import SignedLog
from tracegrad.schemas.metrics import UNVERIFIED, Metrics
from tracegrad.schemas.topics import Topic

RUN = RunHash(RUN_HASH)
REWARDS, CALLS = TOPICS.name(Topic.REWARDS), TOPICS.name(Topic.LLM_CALLS)
KEY = rollout(1).encode()


@pytest.fixture
def raw() -> MemoryLog:
    """With all topics."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"], partitions=1)
    return log


@pytest.fixture
def metrics() -> Metrics:
    """What the log counts in."""
    return Metrics()


@pytest.fixture
def log(raw: MemoryLog, metrics: Metrics) -> SignedLog:
    """On the raw one."""
    return SignedLog(raw, KeyRing(RUN, {RUN: bytes(32)}), topics=TOPICS, metrics=metrics)


def test_its_writer_signs_the_topics_that_the_registry_says(raw: MemoryLog, log: SignedLog) -> None:
    """Beside the headers that the room gives; others bear none."""
    writer = log.writer()
    for topic in Topic:
        writer.append(TOPICS.name(topic), key=KEY, value=b"v", headers=(("a", b"1"),)).result(1)
    writer.close()
    signed = {topic for topic in Topic if MAC_HEADER in dict(raw.records(TOPICS.name(topic))[0].headers)}
    assert signed == SIGNED | VOUCHED
    assert all(raw.records(TOPICS.name(topic))[0].headers[0] == ("a", b"1") for topic in Topic)


def test_its_readers_give_what_it_wrote_and_nothing_else(raw: MemoryLog, log: SignedLog, metrics: Metrics) -> None:
    """By assignment and in a group; elsewhere everything. What is left out is passed, not awaited."""
    writer = log.writer()
    for name in (REWARDS, CALLS):
        raw.append(name, KEY, b"forged", (), 0)
        writer.append(name, key=KEY, value=b"own").result(1)
        raw.append(name, KEY, b"forged", (), 0)
    where = TopicPartition(REWARDS, 0)
    for reader in (log.tail({where: 0}), log.join("group", [REWARDS])):
        assert [record.value for record in reader.read()] == [b"own"]
        assert reader.positions() == {where: 3}
    reader.commit({where: 3})
    assert log.committed("group", REWARDS) == {0: 3} and log.offsets(REWARDS)[0].end == 3
    assert [record.value for record in read_to_end(log, CALLS)] == [b"forged", b"own", b"forged"]
    assert metrics.snapshot() == {"records_unverified{topic=rewards,reason=unsigned}": 4.0}
    assert metrics.value(UNVERIFIED, Topic.REWARDS, "unsigned") == 4


def test_spans_of_anybody_are_given_and_a_mac_only_where_it_verifies(raw: MemoryLog, log: SignedLog) -> None:
    """A Collector's bear none, a forged one is taken off, another run's too; each other header stays."""
    spans, own, other = TOPICS.name(Topic.OTLP_SPANS), log.writer(), ("a", b"b")
    own.append(spans, key=b"trace", value=b"own", headers=(other,)).result(1)
    [(_, mac)] = [header for header in raw.records(spans)[0].headers if header[0] == MAC_HEADER]
    for value, headers in (
        (b"bare", (other,)),
        (b"forged", (other, (MAC_HEADER, mac))),
        (b"theirs", (other, (MAC_HEADER, b"0badcafe:" + mac[9:]))),
        (b"twice", (other, (MAC_HEADER, mac), (MAC_HEADER, mac))),
    ):
        raw.append(spans, b"trace", value, headers, 0)
    found = list(read_to_end(log, spans))
    signers = {record.value: (signer_of(record), other in record.headers) for record in found}
    assert signers.pop(b"own") == (mac[:8].decode(), True)
    assert signers == dict.fromkeys((b"bare", b"forged", b"theirs", b"twice"), (None, True))


def test_a_flood_of_forged_records_is_no_silence(raw: MemoryLog, log: SignedLog) -> None:
    """Reading to the end goes on while the position moves, and is caught up behind it."""
    for _ in range(5_000):
        raw.append(REWARDS, KEY, b"forged", (), 0)
    assert list(read_to_end(log, REWARDS, patience_s=0.0)) == []
    chunks = follow(log, [REWARDS], max_records=9_999)
    assert next(chunks).is_caught_up
    chunks.close()


def test_the_first_of_a_kind_is_said(raw: MemoryLog, log: SignedLog, caplog: pytest.LogCaptureFixture) -> None:
    """A flood fills no log, and another run's records on a shared topic are no news."""
    for headers in ((), ((MAC_HEADER, b"0badcafe:00"),)):
        raw.append(REWARDS, KEY, b"forged", headers, 0)
        raw.append(REWARDS, KEY, b"forged", headers, 0)
        raw.append(REWARDS, b"0badcafe" + KEY[8:], b"theirs", headers, 0)
    with caplog.at_level(logging.INFO):
        assert list(read_to_end(log, REWARDS)) == []
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == ["unsigned", "mismatch"]
