"""What readers make of errors, of a rebalance and of a log that lost what they want."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Message

from tests.compose.kafka.reading import new_topic, read
from tracegrad.compose.kafka.client_settings import consumer_settings, shared_settings
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.reader import GroupReader, TailReader
from tracegrad.schemas.errors import (
    ConfigurationError,
    LogGapError,
    RecordError,
    TracegradError,
    UnavailableError,
)
from tracegrad.schemas.log.protocol import TopicPartition


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

    def __init__(self, script: _Script, **waits: float) -> None:
        self._script = script
        super().__init__(script, {}, **waits)  # type: ignore[arg-type]
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


def test_a_consumer_that_never_closes_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left behind, and said."""
    reader, ever = _ScriptedReader(_Script([]), close_s=0.1), threading.Event()
    monkeypatch.setattr(_Script, "close", lambda script: ever.wait(30), raising=False)
    reader.close()
    assert "has not closed within 0.1 s" in caplog.text and not ever.is_set()
    ever.set()


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


def test_damage_is_named_and_passed_over_by_nobody() -> None:
    """Topic, partition and from which offset on; at each read, for what is damaged stays so."""
    reader = _ScriptedReader(_Script([[message(0)], [trouble(KafkaError._BAD_MSG), message(2)]]))
    assert reader.offsets(max_records=1) == [0]
    for _ in range(2):
        with pytest.raises(
            RecordError, match=r"'t' partition 0 .* a record from 1 on is not as it was written"
        ) as told:
            reader.read()
        assert told.value.reason == "damaged"


def test_a_reader_of_history_looks_at_checksums() -> None:
    """And no other: a live one reads what was written just now."""
    base = shared_settings("127.0.0.1:1", {})
    assert consumer_settings(base, group=None, is_of_history=True)["check.crcs"] is True
    assert consumer_settings(base, group="g")["check.crcs"] is False


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
