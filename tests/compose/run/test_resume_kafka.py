"""A run on a real broker goes on exactly after a long pause, or says why it cannot: real stages, started as ever."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.streams.make import Item, agent_span, call, closed, event, otlp, raw, reward
from tracegrad.compose.die_with_parent import guarded
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.topic_admin import create_topics, plan_topics
from tracegrad.compose.run.pipeline import prepare_run, prepare_topics
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import FATAL_EXIT_STATUS, LogGapError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import LogWriter
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Close, Facts, SpanFact
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.topics import INPUTS, Stage, Topic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


class Run:
    """A run on topics of its own, whose stages are started and stopped one by one."""

    def __init__(self, folder: Path, broker: str) -> None:
        name = uuid.uuid4().hex[:12]
        kafka = KafkaConfig(bootstrap_servers=broker, topic_prefix=f"t{name}.")
        self._run_dir = prepare_run(RunSettings(run="mine", kafka=kafka, policy=PolicyConfig(model="none")), folder)
        self._admin = AdminClient({"bootstrap.servers": broker})
        self._log = KafkaLog(broker)
        self._running: dict[Stage, subprocess.Popen[bytes]] = {}
        self.topics = Wiring(self._run_dir).topics

    @property
    def wiring(self) -> Wiring:
        """As a process makes it that starts now."""
        return Wiring(self._run_dir)

    def rollout(self, number: int) -> str:
        """A rollout id of the run."""
        return f"{self.wiring.record.hash}{number:020x}"

    def start(self, *stages: Stage) -> None:
        """As the supervisor does."""
        for stage in stages:
            command = [sys.executable, "-m", "tracegrad.compose.run.serve", "streams", "--stage", stage.value]
            command += ["--run-dir", str(self._run_dir.path)]
            with (self._run_dir.logs / f"{stage.value}.log").open("ab") as out:
                self._running[stage] = subprocess.Popen(guarded(command), stdout=out, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        """In order; the groups are empty then."""
        for process in self._running.values():
            process.terminate()
        assert [process.wait(60) for process in self._running.values()] == [0] * len(self._running)
        self._running.clear()

    def exit_status(self, stage: Stage) -> int:
        """Of a stage that ends by itself."""
        return self._running.pop(stage).wait(60)

    def kill(self) -> None:
        """What is left at the end of a test."""
        for process in self._running.values():
            process.kill()
            process.wait(10)

    def append(self, writer: LogWriter, *items: Item) -> None:
        """As gateways, graders and runner do."""
        for item in items:
            topic, value = raw(item)
            key = getattr(item, "rollout_id", None)
            writer.append(self.topics.name(topic), key=key.encode() if key else None, value=value)

    def feed(self, *items: Item) -> None:
        """The same by a writer that is made now."""
        writer = self.wiring.log().writer()
        self.append(writer, *items)
        writer.close()

    def forget_offsets(self) -> None:
        """What Kafka does to groups that nobody was in for a week."""
        groups = [self.topics.group(stage) for stage in INPUTS]
        known = {group.group_id for group in self._admin.list_consumer_groups().result(10).valid}
        for future in self._admin.delete_consumer_groups([group for group in groups if group in known]).values():
            future.result(10)

    def expire(self, topic: Topic) -> None:
        """What retention does, now."""
        name = self.topics.name(topic)
        ends = [
            confluent_kafka.TopicPartition(name, partition, kept.end)
            for partition, kept in self._log.offsets(name).items()
        ]
        for future in self._admin.delete_records(ends).values():
            future.result(10)

    def make_anew(self, topic: Topic) -> None:
        """Deletes a topic and makes it again under its name."""
        name = self.topics.name(topic)
        for future in self._admin.delete_topics([name]).values():
            future.result(10)
        self.wait(lambda: not self._log.admin.create_topics([NewTopic(name, 4, 1, config={})]), "the topic anew")

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Up to so many."""
        name = self.topics.name(topic)
        for future in self._admin.create_partitions([NewPartitions(name, count)]).values():
            future.result(10)
        self.wait(lambda: self._log.admin.partition_counts([name])[name] == count, "the partitions")

    def spans(self) -> set[str]:
        """Trace ids of all spans that normalize has read."""
        found = set()
        for record in read_to_end(self._log, self.topics.name(Topic.EPISODE_EVENTS)):
            batch = EPISODE_EVENTS.decode(record.value)
            if isinstance(batch, Facts):
                found |= {fact.trace_id for fact in batch.facts if isinstance(fact, SpanFact)}
        return found

    def episodes(self) -> list[Episode]:
        """As often as they came."""
        name = self.topics.name(Topic.EPISODES)
        return [EPISODES.decode(record.value) for record in read_to_end(self._log, name)]

    def committed(self, stage: Stage) -> bool:
        """Whether the stage is done with all of its input."""
        group = self.topics.group(stage)
        for topic in INPUTS[stage]:
            name = self.topics.name(topic)
            committed = self._log.committed(group, name)
            if any(kept.end > committed.get(number, 0) for number, kept in self._log.offsets(name).items()):
                return False
        return True

    def wait(self, until: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Fails with the stages' last words."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline:
                tails = [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in self._run_dir.logs.glob("*.log")]
                raise AssertionError(f"expected {what} within {timeout_s} s\n" + "\n".join(tails))
            time.sleep(0.2)


@pytest.fixture
def run(tmp_path: Path, broker: str) -> Iterator[Run]:
    """That was never started."""
    made = Run(tmp_path / "mine", broker)
    yield made
    made.kill()


def request_of(run: Run, numbers: range) -> list[Item]:
    """A span of each of these rollouts."""
    return [otlp(agent_span(run.rollout(number) + "a001", 1, "agent")) for number in numbers]


def traces(run: Run, numbers: range) -> set[str]:
    """Of the same."""
    return {run.rollout(number) + "a001" for number in numbers}


def test_spans_that_came_while_the_offsets_expired_are_all_read(run: Run) -> None:
    """100 of 100; what lay there before the run began is not."""
    prepare_topics_after(run, lambda: run.feed(*request_of(run, range(900, 905))))
    run.start(Stage.NORMALIZE)
    run.feed(*request_of(run, range(20)))
    run.wait(lambda: run.spans() == traces(run, range(20)) and run.committed(Stage.NORMALIZE), "20 spans")
    run.stop()
    run.feed(*request_of(run, range(20, 120)))
    run.forget_offsets()
    prepare_topics(run.wiring)
    run.start(Stage.NORMALIZE)
    run.wait(lambda: run.committed(Stage.NORMALIZE), "all read")
    assert len(run.spans() & traces(run, range(20, 120))) == 100
    assert run.spans() == traces(run, range(120))
    run.stop()


def test_a_new_run_begins_where_it_is_told(broker: str, tmp_path: Path) -> None:
    """With what a Collector's topic keeps, or what was written since a time; with nothing of it unless it is told. A
    second start begins nowhere else."""
    log, prefix = KafkaLog(broker), f"t{uuid.uuid4().hex[:12]}."
    begins: dict[str | None, int] = {}
    for start in ("beginning", "1970-01-01T00:00:02+00:00", None):
        kafka = KafkaConfig(bootstrap_servers=broker, topic_prefix=prefix, start=start)
        settings = RunSettings(run=f"run{len(begins)}", kafka=kafka)
        wiring = Wiring(prepare_run(settings, tmp_path / settings.run))
        spans = wiring.topics.name(Topic.OTLP_SPANS)
        if not begins:
            create_topics(log, wiring.topics, plan_topics(wiring.topics, policies=("policy",), kafka=kafka))
            writer = log.writer()
            appended = [writer.append(spans, key=b"k", value=b"v", timestamp_ms=1000 * n) for n in (1, 2, 3)]
            (partition,) = {done.result(30).partition for done in appended}
        for _ in range(2):
            prepare_topics(wiring)
            committed = log.committed(wiring.topics.group(Stage.NORMALIZE), spans)
            assert begins.setdefault(start, committed.get(partition, 0)) == committed.get(partition, 0)
    assert list(begins.values()) == [0, 1, 3]


def prepare_topics_after(run: Run, before: Callable[[], None]) -> None:
    """The run begins on raw topics that hold something."""
    wiring = run.wiring
    create_topics(
        wiring.kafka(), run.topics, plan_topics(run.topics, policies=("policy",), kafka=wiring.settings.kafka)
    )
    before()
    prepare_topics(run.wiring)


@pytest.mark.parametrize("topic", [Topic.OTLP_SPANS, Topic.EPISODE_EVENTS])
def test_a_topic_made_anew_and_refilled_stops_the_run_with_the_remedy(run: Run, topic: Topic) -> None:
    """Its offsets look right and name other records: neither the next start nor a stage goes on."""
    prepare_topics(run.wiring)
    stage = Stage.NORMALIZE if topic is Topic.OTLP_SPANS else Stage.ASSEMBLE
    value = b"" if topic is Topic.OTLP_SPANS else EPISODE_EVENTS.encode(Close(episode_id="x", reason="idle"))
    name, writer = run.topics.name(topic), run.wiring.log().writer()
    for partition in range(4):
        writer.append(name, key=None, value=value, partition=partition)
    writer.close()
    run.start(stage)
    run.wait(lambda: run.committed(stage), "the records")
    run.stop()
    run.make_anew(topic)
    writer = run.wiring.log().writer()
    for partition in list(range(4)) * 3:
        writer.append(name, key=None, value=value, partition=partition)
    writer.close()
    with pytest.raises(LogGapError, match=f"{name}.*made anew.*--run NAME"):
        prepare_topics(run.wiring)
    run.start(stage)
    assert run.exit_status(stage) == FATAL_EXIT_STATUS


def rollout_items(run: Run, number: int, *, calls: int = 4) -> list[Item]:
    """Of one attempt; its end and reward are the last two."""
    own = run.rollout(number)
    made = [call(f"c{number}.{n}", own, [n + 1], [n + 2]) for n in range(calls)]
    group = GroupRef(id=f"{run.wiring.record.hash}{number:016x}", size=1, member=0, index=number)
    return [*made, closed(own, made), reward(own, 1.0), event(own, group=group)]


def test_calls_stay_in_order_when_partitions_are_added_to_their_topic(run: Run) -> None:
    """Half of the calls came before, by a writer that lives on or by one that is made after."""
    prepare_topics(run.wiring)
    run.start(Stage.NORMALIZE, Stage.ASSEMBLE)
    items = {number: rollout_items(run, number) for number in range(40)}
    writer = run.wiring.log().writer()
    for number in items:
        run.append(writer, *items[number][:2])
    run.add_partitions(Topic.LLM_CALLS, 7)
    for number in range(0, 40, 2):
        run.append(writer, *items[number][2:])
    writer.close()
    run.feed(*(item for number in range(1, 40, 2) for item in items[number][2:]))
    run.wait(lambda: len(run.episodes()) == 40, "40 episodes")
    for episode in run.episodes():
        number = int((episode.rollout_id or "")[8:], 16)
        assert [c.call_id for c in episode.calls] == [item.call_id for item in items[number][:4]]  # type: ignore[union-attr]
    run.stop()


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["offsets_kept", "offsets_expired"])
def test_open_episodes_whose_facts_expired_are_made_again_from_the_raw_topics(run: Run, is_forgotten: bool) -> None:
    """Closed ones are not emitted again; open ones come out whole, each once."""
    prepare_topics(run.wiring)
    run.start(Stage.NORMALIZE, Stage.ASSEMBLE)
    items = {number: rollout_items(run, number) for number in range(20)}
    run.feed(*(item for number in range(10) for item in items[number]))
    run.feed(*(item for number in range(10, 20) for item in items[number][:-2]))
    run.wait(lambda: len(run.episodes()) == 10 and run.committed(Stage.NORMALIZE), "10 episodes")
    assert not run.committed(Stage.ASSEMBLE)
    run.stop()
    run.expire(Topic.EPISODE_EVENTS)
    if is_forgotten:
        run.forget_offsets()
    run.feed(*(item for number in range(10, 20) for item in items[number][-2:]))
    prepare_topics(run.wiring)
    run.start(Stage.NORMALIZE, Stage.ASSEMBLE)
    run.wait(lambda: run.committed(Stage.NORMALIZE) and run.committed(Stage.ASSEMBLE), "all read")
    episodes = run.episodes()
    assert sorted(episode.rollout_id or "" for episode in episodes) == [run.rollout(number) for number in range(20)]
    assert {(len(episode.calls), episode.closed_by, episode.reward) for episode in episodes} == {(4, "complete", 1.0)}
    run.stop()
