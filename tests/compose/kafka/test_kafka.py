"""The bad days of the Kafka log: errors, limits, gaps, and a broker that dies."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka.cimpl import NewTopic

from tracegrad.compose.kafka import admin as kafka_admin
from tracegrad.compose.kafka import errors as kafka_errors
from tracegrad.compose.kafka import reader as kafka_reader
from tracegrad.compose.kafka.admin import KafkaAdmin
from tracegrad.compose.kafka.client_settings import producer_settings, shared_settings
from tracegrad.compose.kafka.errors import CODES, boundary, translate
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.partitioner import partition_for
from tracegrad.compose.kafka.reader import GroupReader, TailReader
from tracegrad.compose.kafka.writer import KafkaWriter
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.schemas.errors import (
    ConfigurationError,
    LogGapError,
    OverloadedError,
    RecordError,
    TracegradError,
    UnavailableError,
)
from tracegrad.schemas.log.protocol import LogReader, Position, Record, TopicPartition

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
TRIED_AGAIN = frozenset(_TRIED_AGAIN.split())
"""What another try may cure, and so has no entry."""


def code_names() -> list[str]:
    """Every error code of the installed release."""
    names = [name for name in dir(KafkaError) if name.isupper() and isinstance(getattr(KafkaError, name), int)]
    return sorted(set(names) - _NO_CODES)


def new_topic(log: KafkaLog, partitions: int = 1) -> str:
    """A fresh topic on the real broker."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    log.admin.create_topics([NewTopic(name, partitions, 1, config={})])
    log.admin.partition_counts([name])
    return name


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
    monkeypatch.setattr(kafka_errors, "_is_due", kafka_errors.Seldom())
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


def test_a_topic_that_stays_unknown_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in bounded time, with the remedy."""
    with pytest.raises(ConfigurationError, match="topics create"):
        admin_of_a_topic_unknown_for(20, monkeypatch).partition_counts(["t"])


class _Script:
    """A consumer and an admin in one: batches to consume, and what the broker says when it is asked for its topics."""

    def __init__(self, batches: Sequence[list[Message]], answers: Sequence[TracegradError | None] = ()) -> None:
        self.batches = list(batches)
        self.answers = list(answers)

    def assign(self, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        pass

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        batch = self.batches.pop(0) if self.batches else []
        if len(batch) > num_messages:
            self.batches.insert(0, batch[num_messages:])
        return batch[:num_messages]

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        if (answer := self.answers.pop(0)) is not None:
            raise answer
        return dict.fromkeys(topics, 1)


class _ScriptedReader(TailReader):
    """Reads partition 0 of `t` from 0."""

    def __init__(self, script: _Script) -> None:
        self._script = script
        super().__init__(script, {})  # type: ignore[arg-type]
        self.assign({WHERE: 0})

    def _new_consumer(self) -> Consumer:
        return self._script  # type: ignore[return-value]

    def offsets(self, *, max_records: int = 500) -> list[int]:
        """Of the next records."""
        return [record.offset for record in self.read(max_records=max_records)]


WHERE = TopicPartition("t", 0)


def message(offset: int) -> Message:
    """A good one."""
    return Message(topic="t", partition=0, offset=offset, value=b"v")


def trouble(code: int) -> Message:
    """An error in a message's place."""
    return Message(topic="t", partition=0, error=KafkaError(code, "trouble"))


def test_a_read_that_raises_loses_no_record() -> None:
    """The broker restarts under the second opinion on an unknown topic; the records beside that error come later."""
    away = UnavailableError("away")
    script = _Script(
        [[message(0), message(1), trouble(KafkaError.UNKNOWN_TOPIC_OR_PART), message(2)], [message(3)]],
        [away, away, None],
    )
    reader = _ScriptedReader(script)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            reader.read()
        assert reader.positions() == {WHERE: 0}
    assert reader.offsets() == [0, 1, 2]
    assert reader.positions() == {WHERE: 3}
    assert reader.offsets() == [3]


def test_a_topic_that_is_gone_still_ends_the_reader() -> None:
    """When the broker has answered."""
    gone = ConfigurationError("no such topic")
    reader = _ScriptedReader(_Script([[message(0), trouble(KafkaError.UNKNOWN_TOPIC_OR_PART)]], [gone]))
    with pytest.raises(ConfigurationError):
        reader.read()


def test_a_passing_error_costs_no_neighbour_and_no_exception() -> None:
    """Also when the batch is handed out in parts."""
    batch = [message(0), trouble(KafkaError._TRANSPORT), message(1), message(2)]
    reader = _ScriptedReader(_Script([batch]))
    assert [reader.offsets(max_records=2) for _ in range(3)] == [[0], [1, 2], []]


def test_an_assignment_that_failed_costs_no_record_of_the_batch() -> None:
    """The callback's error is raised by the read that it came in; the batch of that read stays."""
    reader = _ScriptedReader(_Script([[message(0)]]))
    consume = reader._consumer.consume

    def fails(num_messages: int, timeout: float) -> list[Message]:
        reader._failure = UnavailableError("no start offsets")
        return consume(num_messages, timeout)

    reader._consumer.consume = fails  # type: ignore[method-assign, assignment]
    with pytest.raises(UnavailableError):
        reader.read()
    reader._consumer.consume = consume  # type: ignore[method-assign]
    assert reader.offsets() == [0]


class _Rebalanced(GroupReader):
    """Owns partition 0 of `t`, which goes and comes back, from 0, in the first wait for a commit."""

    def __init__(self, batches: Sequence[list[Message]]) -> None:
        self._batches = list(batches)
        super().__init__(None, {}, "g", ["t"])  # type: ignore[arg-type]
        self._next[WHERE] = 0

    def _new_consumer(self) -> Consumer:
        nothing = dict.fromkeys(("subscribe", "commit", "incremental_unassign"), lambda *_, **__: None)
        return SimpleNamespace(consume=self._consume, **nothing)  # type: ignore[return-value]

    def _consume(self, num_messages: int, timeout: float) -> list[Message]:
        if num_messages == 1:
            self._on_revoke(self._consumer, [confluent_kafka.TopicPartition("t", 0)])
            self._next[WHERE] = 0
            self._on_commit(None, [confluent_kafka.TopicPartition("t", 0, 1)])
        return self._batches.pop(0) if self._batches else []


def test_what_was_read_ahead_goes_with_its_partition() -> None:
    """Given first when the partition is back, it would hide the records before it."""
    member = _Rebalanced([[message(0), message(1)], [], [message(0), message(1)]])
    assert [record.offset for record in member.read(max_records=1)] == [0]
    member.commit({WHERE: 1})
    assert [record.offset for record in member.read()] == [0, 1]


@pytest.mark.kafka
def test_committed_offset_below_the_log_is_a_gap(kafka_log: KafkaLog) -> None:
    """Records that were promised are gone: fatal, for a reader at its start and for one that fell behind."""
    topic, group = new_topic(kafka_log), f"group-{uuid.uuid4().hex[:8]}"
    where = TopicPartition(topic, 0)
    writer = kafka_log.writer()
    for value in range(5):
        writer.append(topic, key=None, value=str(value).encode())
    writer.close()
    kafka_log.admin.commit_group_offsets(group, {where: 2})
    assert kafka_log.committed(group, topic) == {0: 2}
    delete_records(kafka_log, where, below=3)
    with pytest.raises(LogGapError, match="got \\[3, 5\\]"):
        kafka_log.tail({where: 2})
    reader = kafka_log.join(group, [topic])
    with pytest.raises(LogGapError, match="expected offset 2"):
        read(reader, 1)
    reader.close()


def delete_records(log: KafkaLog, where: TopicPartition, *, below: int) -> None:
    """What retention does, now."""
    client = log.admin._client
    target = confluent_kafka.TopicPartition(where.topic, where.partition, below)
    for future in client.delete_records([target]).values():
        future.result(10)


def read(reader: LogReader, count: int, *, timeout_s: float = 30.0) -> list[Record]:
    """Reads until so many records came."""
    found: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        found += reader.read(timeout_s=0.1)
    return found


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
    monkeypatch.setattr(kafka_reader, "_COMMIT_TIMEOUT_S", 7.0)
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
