"""The three folds as their workers drive them, one step at a time, on logs in memory.

A step is a record that is read, an output or marker or end of inputs of what that led to, a commit, a look at the
clock, or a death. Of each topic a worker reads in order; which topic comes next is chance, as is all else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.streams.make import HOST, RUN_HASH, TOPICS, Item, let_in, raw, signed_by
from tracegrad.schemas.fold import Emission, Fold, Output
from tracegrad.schemas.log.mac import SIGNED, KeyRing
from tracegrad.schemas.log.protocol import Headers, Position, Record, TopicPartition
from tracegrad.schemas.topics import INPUTS, Stage, Topic
from tracegrad.streams.config import StreamRules
from tracegrad.streams.folds import build_fold

STAGES = (Stage.NORMALIZE, Stage.ASSEMBLE, Stage.CREDIT)


@dataclass
class _UnderWay:
    """What is still to come of an emission."""

    outputs: deque[Output]
    marker: Output | None
    done: tuple[Position, ...]
    is_stale: bool = False
    """Of a worker that does not know yet that its partitions are another's: it appends, and commits nothing."""


@dataclass
class _Worker:
    fold: Fold
    next: dict[Topic, int]
    """What it reads next."""
    committed: dict[Topic, int]
    done: set[Position] = field(default_factory=set)
    under_way: list[_UnderWay] = field(default_factory=list)


class Shells:
    """One partition of each topic, one worker of each stage."""

    def __init__(self, rules: StreamRules, ring: KeyRing | None = None) -> None:
        self.rules = rules
        self.ring = ring
        """By which what is fed is signed, and what is not is read by nobody; None: everybody's word counts."""
        self.log: dict[Topic, list[Record]] = {topic: [] for topic in Topic}
        self.now_s = 1_000.0
        self._topics = {TOPICS.name(topic): topic for topic in Topic}
        self._workers = {
            stage: _Worker(build_fold(stage, rules, TOPICS), dict.fromkeys(INPUTS[stage], 0), {}) for stage in STAGES
        }

    def append(self, topic: Topic, value: bytes, key: bytes | None = None, headers: Headers = ()) -> None:
        """A record, written now."""
        records = self.log[topic]
        at_ms = round(1000 * self.now_s)
        records.append(
            Record(
                topic=TOPICS.name(topic),
                partition=0,
                offset=len(records),
                key=key,
                value=value,
                headers=headers,
                timestamp_ms=at_ms,
            )
        )

    def feed(self, item: Item, *, is_forged: bool = False) -> None:
        """A raw item, as its gateway writes it, or somebody who has no key of the run's."""
        topic, value = raw(item)
        if topic is Topic.OTLP_SPANS:
            value = let_in(value, HOST)
        headers: Headers = signed_by(RUN_HASH) if topic in (Topic.OTLP_SPANS, Topic.LLM_CALLS) else ()
        if self.ring is not None and topic in SIGNED and not is_forged:
            headers = (self.ring.sign(topic, None, value),)
        self.append(topic, value, headers=headers)

    def values(self, topic: Topic) -> list[bytes]:
        """What lies there."""
        return [record.value or b"" for record in self.log[topic]]

    def step(self, random: Random) -> bool:
        """Of some worker; False: there is nothing to do."""
        steps = [(stage, topic) for stage in STAGES for topic in self._unread(stage)]
        under_way = [stage for stage in STAGES if self._workers[stage].under_way]
        if not steps and not under_way:
            return False
        if under_way and (not steps or random.random() < 0.6):
            self._go_on(random.choice(under_way), random)
        else:
            self._read(*random.choice(steps))
        return True

    def settle(self, random: Random) -> None:
        """Until nothing is left but to wait."""
        while self.step(random):
            pass

    def _unread(self, stage: Stage) -> list[Topic]:
        return [topic for topic, offset in self._workers[stage].next.items() if offset < len(self.log[topic])]

    def _read(self, stage: Stage, topic: Topic) -> None:
        worker = self._workers[stage]
        record = self.log[topic][worker.next[topic]]
        worker.next[topic] += 1
        is_void = self.ring is not None and self.ring.refusal(topic, record) is not None
        emission = Emission(done=(record.position,)) if is_void else worker.fold.fold(record)
        worker.under_way.append(_UnderWay(deque(emission.outputs), emission.marker, emission.done))

    def _go_on(self, stage: Stage, random: Random) -> None:
        """Outputs, markers and ends, each in the order of the emissions, and behind what comes before it in its own."""
        worker = self._workers[stage]
        is_stale = random.choice([one.is_stale for one in worker.under_way])
        line = [one for one in worker.under_way if one.is_stale is is_stale]
        first = next((one for one in line if one.outputs), line[0])
        told = next((one for one in line if one.outputs or one.marker is not None), line[0])
        chosen = random.choice([line[0], told, first])
        if chosen.outputs:
            self._put(chosen.outputs.popleft())
        elif chosen.marker is not None:
            self._put(chosen.marker)
            chosen.marker = None
        else:
            worker.under_way.remove(chosen)
            worker.done.update(() if chosen.is_stale else chosen.done)

    def _put(self, output: Output) -> None:
        self.append(output.topic, output.value, output.key, output.headers)

    def committed(self, stage: Stage) -> dict[TopicPartition, int]:
        """What the stage's group has committed."""
        return {TopicPartition(TOPICS.name(topic), 0): at for topic, at in self._workers[stage].committed.items()}

    def commit(self, stage: Stage) -> None:
        """As far as all is done."""
        worker = self._workers[stage]
        for topic in worker.next:
            worker.committed[topic] = self._first_undone(worker, topic)

    def _first_undone(self, worker: _Worker, topic: Topic) -> int:
        offset = worker.committed.get(topic, 0)
        while Position(TOPICS.name(topic), 0, offset) in worker.done:
            offset += 1
        return offset

    def undone(self) -> list[str]:
        """Inputs on which something still depends."""
        return [
            f"{stage} {topic}@{self._first_undone(worker, topic)}"
            for stage, worker in self._workers.items()
            for topic in worker.next
            if self._first_undone(worker, topic) < len(self.log[topic])
        ]

    def tick(self, seconds: float, stages: Sequence[Stage] = STAGES) -> None:
        """Time passes, and clocks propose."""
        self.now_s += seconds
        for stage in stages:
            for output in self._workers[stage].fold.propose(self.now_s, round(1000 * self.now_s)):
                self._put(output)

    def replace(self, stage: Stage, *, is_alive: bool) -> None:
        """Another worker takes over from what was committed; the one before died, or does not know of it yet: then what
        it had begun goes on, and its clock proposes once more."""
        worker = self._workers[stage]
        stale = worker.under_way if is_alive else []
        for one in stale:
            one.is_stale = True
        proposals = worker.fold.propose(self.now_s, round(1000 * self.now_s)) if is_alive else ()
        fold = build_fold(stage, self.rules, TOPICS)
        if fold.marker_topic is not None:
            fold.restore(self.log[fold.marker_topic])
        next_ = {topic: worker.committed.get(topic, 0) for topic in worker.next}
        done = {place for place in worker.done if place.offset < next_[self._topics[place.topic]]}
        self._workers[stage] = _Worker(fold, next_, worker.committed, done, stale)
        for output in proposals:
            self._put(output)
