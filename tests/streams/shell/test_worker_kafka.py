"""The worker on a real broker: what SIGKILL, rebalance, late acknowledgements and bad records may not change."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.shell.counting_fold import Part
from tests.streams.shell.worker_bench import Bench, bench, expected
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.topic_admin import create_topics, plan_topics
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.topics import Topic, Topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


@pytest.fixture
def assemble(kafka_log: KafkaLog, fresh_topics: Topics, tmp_path: Path) -> Iterator[Bench]:
    """Workers of one stage on topics of their own."""
    with bench(kafka_log, fresh_topics, tmp_path) as made:
        yield made


def _parts(num_ids: int, num_parts: int, seed: int) -> tuple[list[Part], dict[str, dict[int, int]]]:
    """Parts of many ids, interleaved so that hundreds are open at once, some of them twice."""
    rng = random.Random(seed)
    values = {f"id{n}": {part: rng.randrange(10**6) for part in range(num_parts)} for n in range(num_ids)}
    keyed = [
        (n + rng.uniform(0, 200), Part(f"id{n}", part, num_parts, values[f"id{n}"][part]))
        for n in range(num_ids)
        for part in range(num_parts)
        for _ in range(1 if rng.random() < 0.9 else 2)
    ]
    return [part for _, part in sorted(keyed, key=lambda item: item[0])], values


def _assert_contents(made: Bench, values: dict[str, dict[int, int]]) -> dict[str, int]:
    """Every id came out, each time with the same bytes, and they hold all of its parts. Returns how often."""
    bodies: dict[str, set[bytes]] = made.bodies()
    assert {id_: {expected(id_, parts)} for id_, parts in values.items()} == bodies
    times: dict[str, int] = defaultdict(int)
    for record in made.records(Topic.EPISODES):
        times[(record.key or b"").decode()] += 1
    return times


def test_two_workers_under_three_kills_lose_nothing_and_fold_equal_contents(assemble: Bench) -> None:
    """Fed all the while, with acknowledgements late and out of order; killed while inputs are open."""
    parts, values = _parts(1500, 4, seed=1)
    counting = {"work_s": 0.0005}

    def feed() -> None:
        for start in range(0, len(parts), 100):
            assemble.feed(*parts[start : start + 100])
            time.sleep(0.1)

    workers = {name: assemble.start(name, counting=counting, max_delay_s=0.3) for name in ("0", "1")}
    feeder = threading.Thread(target=feed)
    feeder.start()
    for victim in ("0", "1", "0"):
        seen = len(assemble.records(Topic.CLOSED_EPISODES))
        assemble.wait(lambda n=seen: len(assemble.records(Topic.CLOSED_EPISODES)) > n + 50, "more closed ids")  # type: ignore[misc]
        assert assemble.uncommitted > 0
        workers[victim].kill()
        workers[victim] = assemble.start(victim, counting=counting, max_delay_s=0.3)
    feeder.join(60)
    assemble.writer.flush(10)
    assemble.wait(lambda: len(assemble.bodies()) == len(values) and not assemble.uncommitted, "all inputs committed")
    times = _assert_contents(assemble, values)
    assert [worker.terminate() for worker in workers.values()] == [0, 0]
    assert max(times.values()) <= 4


def test_a_worker_that_leaves_and_one_that_joins_change_no_content(assemble: Bench) -> None:
    """SIGTERM of one dynamic member and the start of another, in the midst of open ids."""
    parts, values = _parts(900, 4, seed=2)
    half = len(parts) // 2
    first = assemble.start("a", is_static=False, counting={})
    assemble.feed(*parts[:half])
    assemble.writer.flush(10)
    assemble.wait(lambda: len(assemble.bodies()) > 100, "some closed ids")
    second = assemble.start("b", is_static=False, counting={})
    assemble.wait(lambda: "epoch" in second.output, "the second worker's assignment")
    assert first.terminate() == 0
    third = assemble.start("c", is_static=False, counting={})
    assemble.feed(*parts[half:])
    assemble.writer.flush(10)
    assemble.wait(lambda: "epoch" in third.output, "the third worker's assignment")
    assemble.wait(lambda: len(assemble.bodies()) == len(values) and not assemble.uncommitted, "all inputs committed")
    _assert_contents(assemble, values)
    assert (second.terminate(), third.terminate()) == (0, 0)


def test_a_clean_stop_commits_everything_and_a_static_member_gives_its_partitions_up(assemble: Bench) -> None:
    """After SIGTERM nothing is delivered again, and another id takes over long before the session ends."""
    values = {f"id{n}": {0: n, 1: n} for n in range(200)}
    first = assemble.start("0", counting={}, session_timeout_s=30.0)
    assemble.feed(*[Part(id_, part, 2, value) for id_, parts in values.items() for part, value in parts.items()])
    assemble.wait(lambda: len(assemble.bodies()) == 200, "all ids")
    assert first.terminate() == 0
    assert assemble.uncommitted == 0
    second = assemble.start("1", counting={}, session_timeout_s=30.0)
    assemble.feed(Part("last", 0, 1, 7))
    assemble.wait(lambda: "last" in assemble.bodies(), "the last id, before the session's 30 s", timeout_s=20.0)
    assert second.terminate() == 0
    assert len(assemble.records(Topic.EPISODES)) == 201


def test_a_worker_told_to_stop_while_it_starts_ends_cleanly(assemble: Bench) -> None:
    """Before it has joined, nothing of it may stay behind."""
    worker = assemble.start("0", counting={})
    assemble.wait(lambda: "Starting..." in worker.output, "the start")
    assert worker.terminate() == 0
    assert "Traceback" not in worker.output


def test_a_killed_worker_between_output_and_marker_emits_the_same_bytes_again(assemble: Bench) -> None:
    """It dies when the output is acknowledged and the marker is not sent: the id comes out twice, equal."""
    first = assemble.start("0", counting={}, is_killed_before_marker=True)
    assemble.feed(Part("id", 0, 2, 1), Part("id", 1, 2, 2))
    assemble.wait(lambda: first.process.poll() is not None, "the kill")
    assert first.process.returncode == -9
    assert assemble.bodies() == {"id": {expected("id", {0: 1, 1: 2})}}
    assert assemble.records(Topic.CLOSED_EPISODES) == []
    second = assemble.start("0", counting={}, is_killed_before_marker=True)
    assemble.wait(lambda: assemble.records(Topic.CLOSED_EPISODES) != [], "the marker")
    assert second.terminate() == 0
    assert [record.value for record in assemble.records(Topic.EPISODES)] == [expected("id", {0: 1, 1: 2})] * 2
    assert assemble.uncommitted == 0


def test_closed_ids_are_known_after_a_restart_and_their_late_parts_are_not_folded(assemble: Bench) -> None:
    """The markers are read before the first event."""
    first = assemble.start("0", counting={})
    assemble.feed(Part("id", 0, 1, 1))
    assemble.wait(lambda: not assemble.uncommitted and assemble.bodies() != {}, "the id")
    first.kill()
    second = assemble.start("0", counting={})
    assemble.feed(Part("id", 0, 1, 2))
    assemble.wait(lambda: not assemble.uncommitted, "the late part acknowledged")
    assert "1 markers read" in second.output
    assert second.terminate() == 0
    assert assemble.bodies() == {"id": {expected("id", {0: 1})}}


def test_poison_becomes_a_dead_letter_and_its_neighbours_go_on(assemble: Bench) -> None:
    """Garbage at once; a record on which the fold itself fails, after three ends of the process."""
    name = assemble.topics.name(Topic.EPISODE_EVENTS)
    for value in (b"\xff\x00garbage", None, b"{}"):
        assemble.writer.append(name, key=b"x", value=value, headers=(("h", b"1"), ("h", b"2")), partition=0)
    assemble.feed(Part("good", 0, 1, 1), Part("bad", 0, 1, 13), Part("good2", 0, 1, 2))
    ends = 0
    while True:
        worker = assemble.start("0", counting={"crash_on": 13})
        assemble.wait(lambda w=worker: w.process.poll() is not None or not assemble.uncommitted, "an end")  # type: ignore[misc]
        if not assemble.uncommitted:
            break
        assert worker.process.wait(30) == 1
        ends += 1
        assert ends <= 3
    assert worker.terminate() == 0
    assert ends == 3
    assert set(assemble.bodies()) == {"good", "good2"}
    letters = assemble.records(Topic.DEAD_LETTERS)
    reasons = sorted(dict(letter.headers)["tracegrad.reason"] for letter in letters)
    assert set(reasons) == {b"malformed", b"poison"}
    assert reasons.count(b"poison") == 1
    garbage = next(letter for letter in letters if letter.value == b"\xff\x00garbage")
    assert [value for header, value in garbage.headers if header == "h"] == [b"1", b"2"]


def test_a_committed_offset_below_the_logs_start_is_fatal(assemble: Bench) -> None:
    """Faust would skip the gap without a word."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    name = assemble.topics.name(Topic.EPISODE_EVENTS)
    for n in range(20):
        assemble.writer.append(name, key=b"k", value=b"{}", partition=n % 2)
    first = assemble.start("0", counting={})
    assemble.wait(lambda: assemble.uncommitted == 0, "all committed")
    assert first.terminate() == 0
    for _ in range(10):
        assemble.writer.append(name, key=b"k", value=b"{}", partition=0)
    assemble.writer.flush(10)
    admin = AdminClient({"bootstrap.servers": assemble.log.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(name, 0, 15)]).values():
        future.result(10)
    second = assemble.start("0", counting={})
    assert second.process.wait(60) == 78
    assert "LogGapError" in second.output


def test_a_broker_that_is_killed_and_comes_back_is_survived(tmp_path: Path) -> None:
    """The worker lives, or ends by itself and is started again; contents are equal either way."""
    with LocalKafka(tmp_path / "kafka") as kafka:
        log = KafkaLog(kafka.bootstrap_servers)
        topics = Topics(run=RunName("restart"))
        create_topics(log, topics, plan_topics(topics, policies=["policy"], kafka=KafkaConfig()))
        with bench(log, topics, tmp_path) as made:
            parts, values = _parts(600, 3, seed=3)
            half = len(parts) // 2
            worker = made.start("0", counting={})
            made.feed(*parts[:half])
            made.wait(lambda: len(made.bodies()) > 50, "some closed ids")
            kafka.kill()
            made.feed(*parts[half:])
            time.sleep(3.0)
            kafka.start()
            made.writer.flush(30)
            made.wait(lambda: len(made.bodies()) == len(values) and not made.uncommitted, "all inputs committed")
            _assert_contents(made, values)
            assert worker.process.poll() is None
            assert worker.terminate() == 0
