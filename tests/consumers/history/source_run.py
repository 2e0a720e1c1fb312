"""A source run in memory, and what its topics tell of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random

from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, TOPICS, Item, Streams
from tracegrad.consumers.history.read_recorded import read_recorded
from tracegrad.consumers.history.recorded import RecordedEpisodes
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.topics import INPUTS, Stage, Topic
from tracegrad.streams.config import StreamRules


class SourceRun(Streams):
    """A run that lives: what comes, and the time that passes between."""

    def __init__(self, rules: StreamRules) -> None:
        super().__init__(rules)
        self.now_s = 0.0

    def live(self, items: Sequence[Item], random: Random, *, pause_s: float, share: float = 0.3) -> None:
        """These come in order, and between them, by chance, nothing for a while; then for long."""
        for item in items:
            self.feed(item)
            if random.random() < share:
                self.pass_s(pause_s)
        for _ in range(5):
            self.pass_s(10_000)

    def pass_s(self, seconds: float) -> None:
        """The clocks look before and after."""
        self.tick(self.now_s)
        self.now_s += seconds
        self.tick(self.now_s)

    def history(self, *topics: Topic, log: MemoryLog | None = None, has_bodies: bool = False) -> MemoryLog:
        """A log with the records of these topics, in one partition each; of all that is not raw no body, unless told
        so."""
        log = log or MemoryLog()
        log.create_topics(TOPICS, policies=["policy"], partitions=1)
        writer = log.writer()
        for topic in topics:
            for record in self.log.get(topic, []):
                value = record.value if has_bodies or topic in INPUTS[Stage.NORMALIZE] else b""
                writer.append(TOPICS.name(topic), key=record.key, value=value, headers=record.headers, partition=0)
        return log

    def past(self, log: MemoryLog | None = None, *, has_bodies: bool = False) -> MemoryLog:
        """The log that a replay of it reads."""
        topics = (*INPUTS[Stage.NORMALIZE], Topic.EPISODES, Topic.TRANSITIONS)
        return self.history(*topics, log=log, has_bodies=has_bodies)

    def recorded(self) -> RecordedEpisodes:
        """As the headers of its records tell, whose bodies are gone."""
        return read_recorded(self.history(Topic.EPISODES, Topic.TRANSITIONS), TOPICS, [RUN_HASH])


def raw_of(streams: Streams) -> list[Record]:
    """The raw records of a run, topic by topic."""
    return [record for topic in INPUTS[Stage.NORMALIZE] for record in streams.log.get(topic, [])]


def interleaved(records: Iterable[Record], random: Random) -> list[Record]:
    """Of each topic in order, of several as chance has it."""
    queues: dict[str, deque[Record]] = {}
    for record in records:
        queues.setdefault(record.topic, deque()).append(record)
    mixed = []
    while queues:
        topic = random.choice(sorted(queues))
        mixed.append(queues[topic].popleft())
        if not queues[topic]:
            del queues[topic]
    return mixed
