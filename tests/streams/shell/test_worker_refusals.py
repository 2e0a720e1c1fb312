"""Workers on a real broker that meet what they cannot decode: mutants of every input, and whole rows of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.poison import mutants
from tests.streams.make import RUN_HASH, Item, Streams, call, closed, event, raw, reward, rollout
from tests.streams.shell.worker_bench import Bench, Worker, bench
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.refusals import MAX_IN_A_ROW
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import INPUTS, STREAMS, Stage, Topic, Topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


@pytest.fixture
def made(kafka_log: KafkaLog, fresh_topics: Topics, tmp_path: Path) -> Iterator[Bench]:
    """Workers of one stage at a time, on topics of their own."""
    with bench(kafka_log, fresh_topics, tmp_path) as ready:
        yield ready


def _facts(numbers: range) -> list[bytes]:
    """What normalize makes of these rollouts, whole and complete."""
    streams = Streams()
    for number in numbers:
        own = rollout(number)
        calls = [call(f"c{number}", own, [1, 2], [3])]
        streams.feed(event(own, RolloutState.STARTED), *calls, closed(own, calls), reward(own), event(own))
    return streams.values(Topic.EPISODE_EVENTS)


def _append(made: Bench, topic: Topic, values: list[bytes]) -> None:
    for value in values:
        made.writer.append(made.topics.name(topic), key=b"k", value=value, partition=1)
    made.writer.flush(30)


def _committed(made: Bench, topic: Topic) -> dict[int, int]:
    return dict(made.log.committed(made.topics.group(made.stage), made.topics.name(topic)))


def test_a_row_of_unreadable_records_stops_the_stage_and_all_is_folded_after_the_mend(made: Bench) -> None:
    """An older release meets records of a newer one: it ends with 78, and nothing of the row is done or dead."""
    _append(made, Topic.EPISODE_EVENTS, [*_facts(range(3)), b"garbage", b"garbage", *_facts(range(3, 6))])
    first = made.start("0")
    made.wait(lambda: not made.uncommitted, "the first episodes")
    assert first.terminate() == 0
    before = _committed(made, Topic.EPISODE_EVENTS)
    row = _facts(range(6, 40))
    assert len(row) > MAX_IN_A_ROW
    _append(made, Topic.EPISODE_EVENTS, row)
    for _ in range(2):  # a restart counts the same row again
        outdated = made.start("0", is_outdated=True)
        assert outdated.process.wait(60) == 78, outdated.output[-3000:]
        assert "UnreadableError" in outdated.output
        assert _committed(made, Topic.EPISODE_EVENTS) == before
        assert [letter.value for letter in made.records(Topic.DEAD_LETTERS)] == [b"garbage", b"garbage"]
    mended = made.start("0")
    made.wait(lambda: not made.uncommitted, "the row folded")
    assert mended.terminate() == 0
    assert len({record.value for record in made.records(Topic.EPISODES)}) == 40
    assert len(made.records(Topic.DEAD_LETTERS)) == 2


def test_a_row_where_others_write_is_an_alarm_and_no_stop(made: Bench) -> None:
    """Garbage on `rewards`, from whoever can reach it: each a dead letter, and what lies behind is read."""
    made.stage = Stage.NORMALIZE
    worker = made.start("0")
    _append(made, Topic.REWARDS, [b"garbage"] * (2 * MAX_IN_A_ROW + 50) + [raw(reward(rollout(1)))[1]])
    made.wait(lambda: not made.uncommitted, "everything committed")
    assert worker.output.count("in a row that cannot") == 2
    assert worker.terminate() == 0
    assert len(made.records(Topic.DEAD_LETTERS)) == 2 * MAX_IN_A_ROW + 50
    assert len(made.records(Topic.EPISODE_EVENTS)) == 1


def test_mutants_of_every_input_end_no_worker(made: Bench) -> None:
    """All stages and their markers; what is good behind them comes out as transitions."""
    markers = (Topic.CLOSED_EPISODES, Topic.CLOSED_GROUPS)
    for topic in (*markers, *(topic for stage in STREAMS for topic in INPUTS[stage])):
        name = made.topics.name(topic)
        for record in mutants(topic, name):
            value = record.value and record.value.replace(b"1f2e3d4c", RUN_HASH.encode())
            made.writer.append(name, key=record.key, value=value, headers=record.headers, partition=1)
    made.writer.flush(30)
    workers: list[Worker] = []
    for stage in STREAMS:
        made.stage = stage
        workers.append(made.start(f"{stage.value}-0"))
    own = rollout(1)
    calls = [call("c1", own, [1, 2], [3])]
    items: list[Item] = [event(own, RolloutState.STARTED), *calls, closed(own, calls), reward(own), event(own)]
    for item in items:
        topic, value = raw(item)
        _append(made, topic, [value])
    made.wait(
        lambda: any(own.encode() in (record.value or b"") for record in made.records(Topic.TRANSITIONS)),
        "the good rollout's transitions",
    )
    assert [worker.process.poll() for worker in workers] == [None, None, None]
    assert [worker.terminate() for worker in workers] == [0, 0, 0]


def test_headers_without_a_value_end_no_worker(made: Bench) -> None:
    """Whoever reaches the broker may write one; Kafka's clients tell it as None, where a MAC or a reason is text."""
    made.stage = Stage.NORMALIZE
    name, headers = made.topics.name(Topic.REWARDS), (("tracegrad.mac", None), ("tracegrad.reason", None))
    made.writer.append(name, key=b"k", value=b"garbage", headers=headers, partition=1)  # type: ignore[arg-type]
    _append(made, Topic.REWARDS, [raw(reward(rollout(1)))[1]])
    worker = made.start("0")
    made.wait(lambda: not made.uncommitted, "everything committed")
    assert worker.terminate() == 0, worker.output[-3000:]
    assert len(made.records(Topic.DEAD_LETTERS)) == len(made.records(Topic.EPISODE_EVENTS)) == 1
