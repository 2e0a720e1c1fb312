"""The bad days of the Kafka log: errors, limits, and a broker that dies; for gaps see test_readers.py."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from tests.compose.kafka.reading import new_topic, read
from tracegrad.compose.kafka import admin as kafka_admin
from tracegrad.compose.kafka import errors as kafka_errors
from tracegrad.compose.kafka import reader as kafka_reader
from tracegrad.compose.kafka.admin import KafkaAdmin
from tracegrad.compose.kafka.client_settings import producer_settings, shared_settings
from tracegrad.compose.kafka.errors import CODES, boundary, translate
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.writer import KafkaWriter, partition_for
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.schemas.errors import (
    ConfigurationError,
    OverloadedError,
    RecordError,
    TracegradError,
    UnavailableError,
)
from tracegrad.schemas.log.protocol import LogReader, Position, TopicPartition

NOWHERE = "127.0.0.1:1"
_NO_CODES = {"_BEGIN", "_END"}
_TRIED_AGAIN = """
BROKER_NOT_AVAILABLE CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
DUPLICATE_SEQUENCE_NUMBER ELECTION_NOT_NEEDED ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH
FENCED_MEMBER_EPOCH FENCED_STATE_EPOCH FETCH_SESSION_ID_NOT_FOUND GROUP_SUBSCRIBED_TO_TOPIC ILLEGAL_GENERATION
INVALID_FETCH_SESSION_EPOCH INVALID_MSG INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING
INVALID_SHARE_SESSION_EPOCH INVALID_TXN_STATE KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE LOG_DIR_NOT_FOUND
MEMBER_ID_REQUIRED NETWORK_EXCEPTION NON_EMPTY_GROUP NOT_CONTROLLER NOT_COORDINATOR NOT_ENOUGH_REPLICAS
NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION NO_ERROR NO_REASSIGNMENT_IN_PROGRESS
OFFSET_NOT_AVAILABLE OPERATION_NOT_ATTEMPTED OUT_OF_ORDER_SEQUENCE_NUMBER PREFERRED_LEADER_NOT_AVAILABLE
REASSIGNMENT_IN_PROGRESS REBALANCE_IN_PROGRESS REBOOTSTRAP_REQUIRED REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT
SHARE_SESSION_LIMIT_REACHED SHARE_SESSION_NOT_FOUND STALE_BROKER_EPOCH STALE_CTRL_EPOCH STALE_MEMBER_EPOCH
TRANSACTION_ABORTABLE UNKNOWN UNKNOWN_CONTROLLER_ID UNKNOWN_LEADER_EPOCH UNKNOWN_MEMBER_ID UNKNOWN_PRODUCER_ID
UNKNOWN_SUBSCRIPTION_ID UNSTABLE_OFFSET_COMMIT _ALL_BROKERS_DOWN _APPLICATION _ASSIGNMENT_LOST
_ASSIGN_PARTITIONS _DESTROY _DESTROY_BROKER _FAIL _FATAL _GAPLESS_GUARANTEE _INCONSISTENT _INTR _IN_PROGRESS
_ISR_INSUFF _MAX_POLL_EXCEEDED _MSG_TIMED_OUT _NODE_UPDATE _NOOP _NO_OFFSET _OUTDATED _PARTIAL _PARTITION_EOF
_PREV_IN_PROGRESS _PURGE_INFLIGHT _PURGE_QUEUE _RESOLVE _RETRY _REVOKE_PARTITIONS _TIMED_OUT _TIMED_OUT_QUEUE
_STATE _CONFLICT _CRIT_SYS_RESOURCE _FS _NOENT
_TRANSPORT _UNDERFLOW _UNKNOWN_BROKER _WAIT_CACHE _WAIT_COORD
"""
_NEVER = """
DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_EXPIRED
DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DUPLICATE_VOTER
FEATURE_UPDATE_FAILED INCONSISTENT_VOTER_SET INVALID_PRINCIPAL_TYPE INVALID_REGISTRATION INVALID_UPDATE_VERSION
INVALID_VOTER_KEY LISTENER_NOT_FOUND MISMATCHED_ENDPOINT_TYPE PRINCIPAL_DESERIALIZATION_FAILURE
STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED TELEMETRY_TOO_LARGE
UNACCEPTABLE_CREDENTIAL UNSUPPORTED_ENDPOINT_TYPE VOTER_NOT_FOUND
"""
"""Answers to requests that no client of ours makes: of delegation tokens, quorums, Kafka Streams."""
TRIED_AGAIN = frozenset((_TRIED_AGAIN + _NEVER).split())
"""What another try may cure, and so has no entry."""


def code_names() -> list[str]:
    """Every error code of the installed release."""
    names = [name for name in dir(KafkaError) if name.isupper() and isinstance(getattr(KafkaError, name), int)]
    return sorted(set(names) - _NO_CODES)


def test_no_error_code_is_unmapped() -> None:
    """Each code of the installed confluent-kafka has a reaction of its own choosing."""
    assert len(code_names()) > 150
    assert not TRIED_AGAIN & CODES.keys()
    assert [name for name in code_names() if name not in TRIED_AGAIN | CODES.keys()] == []


@pytest.mark.parametrize("name", code_names())
def test_error_leaves_as_ours(name: str) -> None:
    """Translated once, by its code's own name, whatever it is; the original is its cause."""
    error = KafkaError(getattr(KafkaError, name), "words")
    assert error.name() == name
    with pytest.raises(TracegradError) as caught, boundary("try it"):
        raise KafkaException(error)
    assert type(caught.value) is CODES.get(name, UnavailableError)
    assert "try it" in str(caught.value)
    assert isinstance(caught.value.__cause__, KafkaException)


def test_unlisted_code_is_tried_again() -> None:
    """A code of a later release must neither stop a process nor drop a record."""
    assert type(translate(KafkaError(31_999, "new"), doing="x")) is UnavailableError


def test_a_partition_without_a_leader_is_waited_for() -> None:
    """What librdkafka says while a broker restarts is no reason to give a run up."""
    assert type(translate(KafkaError(KafkaError._NOENT, "No leaders found"), doing="x")) is UnavailableError
    busy = "Unable to replicate the partition 1 time(s): All brokers are currently fenced, or have all their log ..."
    few = "Unable to replicate the partition 3 time(s): ... because only 1 broker(s) are registered."
    factor = KafkaError.INVALID_REPLICATION_FACTOR
    assert type(translate(KafkaError(factor, busy), doing="x")) is UnavailableError
    assert type(translate(KafkaError(factor, few), doing="x")) is ConfigurationError


def test_client_settings_outside_the_allow_list_are_refused() -> None:
    """Settings could load code or weaken delivery."""
    for name in ("plugin.library.paths", "sasl.kerberos.kinit.cmd", "acks", "enable.auto.commit", "bootstrap.servers"):
        with pytest.raises(ConfigurationError, match="allowed"):
            KafkaLog(NOWHERE, {name: "x"})
    with pytest.raises(ConfigurationError, match="bootstrap_servers"):
        KafkaLog(" ")
    assert shared_settings(NOWHERE, {"sasl.username": "me"})["sasl.username"] == "me"


def test_wrong_client_setting_is_a_configuration_error() -> None:
    """Said when the first client is made, not later."""
    with pytest.raises(ConfigurationError):
        KafkaLog(NOWHERE, {"security.protocol": "no such thing"}).writer()


def test_full_queue_is_overloaded_at_once() -> None:
    """Memory is bounded while the broker is away; what waits ends with an error when the writer closes."""
    settings = producer_settings(shared_settings(NOWHERE, {}))
    writer = KafkaWriter({**settings, "queue.buffering.max.messages": 10})
    futures: list[Future[Position]] = []
    with pytest.raises(OverloadedError):
        for _ in range(11):
            futures.append(writer.append("t", key=None, value=b"v"))
    assert len(futures) == 10
    with pytest.raises(UnavailableError):
        writer.close(timeout_s=0.0)
    assert all(isinstance(future.exception(1.0), UnavailableError) for future in futures)


class _Clock:
    """Stands in for the module `time`: whoever sleeps moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_trouble_of_a_client_is_told_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of each kind; an away broker is reported several times a second by each client."""
    clock = _Clock()
    monkeypatch.setattr(kafka_errors, "time", clock)
    monkeypatch.setattr(kafka_errors, "_is_due", kafka_errors.LogThrottle())
    for code in (KafkaError._TRANSPORT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
        kafka_errors.log_error(KafkaError(code, "down"))
    clock.sleep(10.0)
    kafka_errors.log_error(KafkaError(KafkaError._TRANSPORT, "down"))
    assert [message.rpartition("(")[2] for message in caplog.messages] == [
        "_TRANSPORT)",
        "_ALL_BROKERS_DOWN)",
        "_TRANSPORT)",
    ]


def admin_of_a_topic_unknown_for(unknown_s: float, monkeypatch: pytest.MonkeyPatch) -> KafkaAdmin:
    """Its broker learns of `t` only then."""
    clock = _Clock()
    monkeypatch.setattr("tenacity.time", clock)
    monkeypatch.setattr("tenacity.nap.time", clock)

    def list_topics(timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={"t": SimpleNamespace(partitions=[0])} if clock.now_s > unknown_s else {})

    monkeypatch.setattr(kafka_admin, "AdminClient", lambda *_, **__: SimpleNamespace(list_topics=list_topics))
    return KafkaAdmin({"bootstrap.servers": NOWHERE})


def test_a_topic_that_a_restarted_broker_does_not_know_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, not one: the error ends the whole run."""
    assert admin_of_a_topic_unknown_for(12, monkeypatch).partition_counts(["t"]) == {"t": 1}


def test_topics_of_a_fenced_broker_are_asked_for_again_and_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try makes one and fails for another: neither was there before, a third was."""
    clock = _Clock()
    monkeypatch.setattr("tenacity.time", clock)
    monkeypatch.setattr("tenacity.nap.time", clock)
    fenced = KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced")
    there = KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, "there")
    answers: list[dict[str, KafkaError | None]] = [{"late": fenced, "made": None, "old": there}, {"late": None}]
    asked: list[list[str]] = []

    def create_topics(topics: list[NewTopic], **_: float) -> dict[str, Future[None]]:
        asked.append([topic.topic for topic in topics])
        futures: dict[str, Future[None]] = {name: Future() for name in answers[0]}
        for name, error in answers.pop(0).items():
            futures[name].set_exception(KafkaException(error)) if error else futures[name].set_result(None)
        return futures

    monkeypatch.setattr(kafka_admin, "AdminClient", lambda *_, **__: SimpleNamespace(create_topics=create_topics))
    wanted = [NewTopic(name, 1, 1) for name in ("late", "made", "old")]
    assert KafkaAdmin({"bootstrap.servers": NOWHERE}).create_topics(wanted) == {"old"}
    assert asked == [["late", "made", "old"], ["late"]]


def test_a_topic_that_stays_unknown_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in bounded time, with the remedy."""
    with pytest.raises(ConfigurationError, match="topics create"):
        admin_of_a_topic_unknown_for(20, monkeypatch).partition_counts(["t"])


@pytest.mark.kafka
def test_offsets_of_a_group_with_members_are_not_overwritten(kafka_log: KafkaLog) -> None:
    """The broker refuses while somebody reads; it may be tried again later."""
    topic, group = new_topic(kafka_log), f"group-{uuid.uuid4().hex[:8]}"
    reader = kafka_log.join(group, [topic])
    deadline = time.monotonic() + 20
    while not reader.positions() and time.monotonic() < deadline:
        reader.read(timeout_s=0.1)
    with pytest.raises(TracegradError):
        kafka_log.admin.commit_group_offsets(group, {TopicPartition(topic, 0): 0})
    reader.close()


def test_partitioner_agrees_with_aiokafka() -> None:
    """Faust workers and our writers put a key into one partition."""
    from aiokafka.partitioner import DefaultPartitioner  # type: ignore[import-untyped]

    place = DefaultPartitioner()
    keys = [uuid.uuid4().bytes[: n % 17] for n in range(200)]
    assert [place(key, list(range(7)), list(range(7))) for key in keys] == [partition_for(key, 7) for key in keys]


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    """A broker that the test may kill."""
    with LocalKafka(tmp_path / "kafka") as kafka:
        yield kafka


@pytest.mark.kafka
def test_acknowledged_records_survive_a_killed_broker(own_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends go on through SIGKILL and restart; each acknowledged record is there once, in its place."""
    log = KafkaLog(own_kafka.bootstrap_servers)
    topic, group = new_topic(log, 2), "survivors"
    writer = log.writer()
    reader = log.join(group, [topic])
    futures = [writer.append(topic, key=str(i).encode(), value=str(i).encode() * 100) for i in range(2000)]
    got = read(reader, 500)
    where = TopicPartition(got[0].topic, got[0].partition)
    own_kafka.kill()
    futures += [writer.append(topic, key=str(i).encode(), value=str(i).encode() * 100) for i in range(2000, 4000)]
    # Longer than a member's session of 6 s.
    monkeypatch.setattr(kafka_reader, "_ANSWER_S", 7.0)
    check_calls_are_bounded_while_away(reader, where)
    own_kafka.start()
    positions = [future.result(60) for future in futures]
    assert len(set(positions)) == 4000
    values = {record.position: record.value for record in got}
    deadline = time.monotonic() + 60
    while len(values) < 4000 and time.monotonic() < deadline:
        # The outage outlasted the member's session, so what it had not committed comes again.
        values |= {record.position: record.value for record in reader.read(timeout_s=0.1)}
    assert len(values) == 4000
    assert all(values[position] == str(i).encode() * 100 for i, position in enumerate(positions))
    reader.commit(reader.positions())
    assert sum(log.committed(group, topic).values()) == 4000
    reader.close()
    writer.close()


def check_calls_are_bounded_while_away(reader: LogReader, where: TopicPartition) -> None:
    """Reads give nothing, a commit ends with UnavailableError, none hangs."""
    started = time.monotonic()
    for _ in range(20):
        reader.read(timeout_s=0.05)
    assert time.monotonic() - started < 5
    started = time.monotonic()
    with pytest.raises(UnavailableError):
        reader.commit({where: 1})
    assert time.monotonic() - started < 12


@pytest.mark.kafka
def test_readers_close_in_bounded_time_without_broker(own_kafka: LocalKafka) -> None:
    """A process can stop while Kafka is away."""
    log = KafkaLog(own_kafka.bootstrap_servers)
    topic = new_topic(log)
    member, tail = log.join("leavers", [topic]), log.tail({TopicPartition(topic, 0): 0})
    while not member.positions():
        member.read(timeout_s=0.1)
    own_kafka.kill()
    started = time.monotonic()
    tail.close()
    member.close()
    assert time.monotonic() - started < 15


def test_too_large_record_is_named_so() -> None:
    """Dead letters carry the reason."""
    error = translate(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), doing="append")
    assert isinstance(error, RecordError)
    assert error.reason == "too_large"
