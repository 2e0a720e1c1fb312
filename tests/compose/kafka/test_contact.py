"""A cluster whose brokers are fenced for a moment: clients that librdkafka leaves without any are replaced."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.compose.kafka.fenced import FencedWay
from tests.compose.kafka.reading import new_topic
from tracegrad.compose.kafka import admin as kafka_admin
from tracegrad.compose.kafka.admin import KafkaAdmin
from tracegrad.compose.kafka.client_settings import Contact, consumer_settings, shared_settings
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.reader import TailReader
from tracegrad.compose.kafka.writer import KafkaWriter
from tracegrad.schemas.beat import Beat, kept
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.protocol import LogReader, TopicPartition

ALONE = '{"brokers": {"GroupCoordinator": {"source": "logical", "state": "INIT"}}}'
ASKING = """
import threading, time
from tracegrad.compose.kafka import admin as kafka_admin
from tracegrad.compose.kafka.client_settings import shared_settings

settings, num_made = shared_settings("127.0.0.1:1", {}), 0

class Admin(kafka_admin.KafkaAdmin):
    def _new_client(self):
        global num_made
        num_made += 1
        return super()._new_client()

admin, end = Admin(settings, timeout_s=0.05, unknown_s=0.05), time.monotonic() + 5.0

def ask():
    while time.monotonic() < end:
        try:
            admin.topic_id("topic")
        except kafka_admin.UnavailableError:
            pass

threads = [threading.Thread(target=ask) for _ in range(8)]
for asking in threads:
    asking.start()
for asking in threads:
    asking.join()
print(num_made)
"""
AWAY = '{"brokers": {"127.0.0.1:9/bootstrap": {"source": "configured", "state": "DOWN"}}}'


def test_a_client_is_lost_when_it_knows_no_broker_twice_in_a_row() -> None:
    """One that it cannot reach, it knows; once may be the moment before it begins again."""
    contact = Contact()
    for told, is_lost in ((ALONE, False), (AWAY, False), (ALONE, False), (ALONE, True), (AWAY, False)):
        contact.read_statistics(told)
        assert contact.is_lost == is_lost


def values(readers: Sequence[LogReader], *, timeout_s: float = 30.0) -> list[list[bytes | None]]:
    """What each reads until all have read something."""
    found: list[list[bytes | None]] = [[] for _ in readers]
    deadline = time.monotonic() + timeout_s
    while not all(found) and time.monotonic() < deadline:
        for reader, own in zip(readers, found, strict=True):
            own += [record.value for record in reader.read(timeout_s=0.02)]
    return found


@pytest.mark.kafka
def test_readers_of_a_cluster_that_was_fenced_for_a_moment_read_on(broker: str, kafka_log: KafkaLog) -> None:
    """Of eight, each asking for brokers every 0.2 s, three to all were deaf for ever; each record is read once."""
    topic, writer = new_topic(kafka_log), kafka_log.writer()
    with FencedWay(broker) as way:
        own = {"topic.metadata.refresh.interval.ms": 200, "statistics.interval.ms": 500}
        settings = consumer_settings(shared_settings(way.bootstrap_servers, {}), group=None) | own
        readers = [TailReader(kafka_log.admin, settings) for _ in range(8)]
        for reader in readers:
            reader.assign({TopicPartition(topic, 0): 0})
        writer.append(topic, key=None, value=b"before").result(30)
        assert values(readers) == [[b"before"]] * 8
        way.is_fenced = True
        time.sleep(1.0)
        way.is_fenced = False
        assert way.num_fenced > 8
        writer.append(topic, key=None, value=b"after").result(30)
        assert values(readers) == [[b"after"]] * 8
        assert values(readers, timeout_s=1.0) == [[]] * 8
        for reader in readers:
            reader.close()
    writer.close()


@pytest.mark.kafka
def test_a_lost_writer_and_a_lost_member_are_replaced(kafka_log: KafkaLog) -> None:
    """What is appended then is acknowledged; a member of a group goes on from its commit."""
    topic, writer = new_topic(kafka_log), kafka_log.writer()
    reader = kafka_log.join(f"group-{topic}", [topic])
    assert isinstance(writer, KafkaWriter)
    assert isinstance(reader, TailReader)
    writer.append(topic, key=None, value=b"0").result(30)
    assert values([reader]) == [[b"0"]]
    reader.commit(reader.positions())
    producer, consumer = writer._producer, reader._consumer
    for contact in (writer._contact, reader._contact):
        contact.read_statistics(ALONE)
        contact.read_statistics(ALONE)
    deadline = time.monotonic() + 20
    while writer._producer is producer and time.monotonic() < deadline:
        time.sleep(0.05)
    writer.append(topic, key=None, value=b"1").result(30)
    assert values([reader]) == [[b"1"]]
    assert writer._producer is not producer
    assert reader._consumer is not consumer
    reader.close()
    writer.close()


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._TRANSPORT)), TimeoutError()])
def test_an_admin_client_that_got_no_answer_is_replaced(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next question is another client's; an answer that says no is an answer."""

    class Client:
        def __init__(self, settings: Any, *, error_cb: Any) -> None:
            clients.append(self)

        def list_topics(self, timeout: float) -> None:
            raise failures.pop()

        def create_topics(self, topics: list[NewTopic], **timeouts: float) -> dict[str, Any]:
            if failures:
                raise failures.pop()
            return {}

    clients: list[Client] = []
    failures = [KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)), error]
    monkeypatch.setattr(kafka_admin, AdminClient.__name__, Client)
    admin = KafkaAdmin({})
    for num_clients in (2, 2):
        with pytest.raises(UnavailableError):
            admin.partition_counts()
        assert len(clients) == num_clients
    failures.append(error)
    assert admin.create_topics([NewTopic("topic")]) == set()
    assert len(clients) == 3


def test_a_replaced_admin_client_is_gone_at_once_whoever_holds_the_error() -> None:
    """A thread of the client's may hold the error longest: a client that ended with it there would abort the process,
    as librdkafka wants to be ended by none of its own threads. (To list topics is asked in none.)"""
    admin = KafkaAdmin(shared_settings("127.0.0.1:1", {}), timeout_s=0.1, unknown_s=0.0)
    asked = (
        lambda: admin.topic_id("t"),
        lambda: admin.create_topics([NewTopic("t", 1, 1)]),
        lambda: admin.offsets([TopicPartition("t", 0)]),
    )
    gc.disable()
    try:
        for ask in asked:
            first = weakref.ref(admin._client)
            with pytest.raises(UnavailableError) as error:
                ask()
            assert first() is None, f"held by {error.value!r}"
    finally:
        gc.enable()


def test_many_questions_without_an_answer_abort_no_process() -> None:
    """Hundreds of clients are replaced while others' questions wait."""
    asked = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stderr[-2000:]
    assert int(asked.stdout) > 100


def test_each_question_gives_a_beat() -> None:
    """Several in a row, each bounded, are together longer than a process may be silent."""
    beats: list[Beat] = []
    with kept(beats.append), pytest.raises(UnavailableError):
        KafkaAdmin(shared_settings("127.0.0.1:1", {}), timeout_s=0.01, unknown_s=0.0).topic_id("topic")
    assert "describe topic 'topic'" in [beat.doing for beat in beats]
