"""What a replay costs: spans a second of one core, beside a bare loop that reads and decodes; memory over a long past.

    PYTHONPATH=. python benchmarks/replay.py [--run runs/demo] [--records 60000] [--long 1000000]

The records of a run that has ended, whose broker is opened once, or of a small run that the real folds made: again and
again under other ids, handed over in memory, so that no broker is in the figures. The bare loop parses each raw record;
the replay reads what the source recorded, merges, folds all three stages and writes to a log that forgets. CPU seconds
of the process: compare within one run. Then the same over `--long` records, made while they are read: resident memory
at each tenth.
"""

from __future__ import annotations

import argparse
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.consumers.audit.small_run import attempt
from tests.consumers.history.source_run import SourceRun
from tests.streams.make import RUN_HASH, TOPICS, config
from tracegrad.compose.history.run_broker import open_broker
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.consumers.history.read_recorded import read_recorded
from tracegrad.consumers.history.refold import Refold
from tracegrad.consumers.history.replay import History, ReplayProgress, merged, replay
from tracegrad.consumers.history.selection import Window, bounds_of
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.made_of import MADE_OF_HEADER, GroupMadeOf, MadeOf, Positions
from tracegrad.schemas.log.protocol import Headers, Log, Offsets, Position, Record, TopicPartition
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import LLM_CALLS
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, GroupRef
from tracegrad.schemas.topics import INPUTS, STREAMS, Stage, Topic, Topics
from tracegrad.streams.assemble.air.apply import Rewarder
from tracegrad.streams.assemble.write.again import make_again
from tracegrad.streams.config import StreamRules
from tracegrad.streams.folds import build_fold
from tracegrad.streams.ratings import rate_again

_RAW = INPUTS[Stage.NORMALIZE]
_DECODE: Mapping[Topic, Callable[[bytes], Any]] = {
    Topic.OTLP_SPANS: ExportTraceServiceRequest.FromString,
    Topic.LLM_CALLS: LLM_CALLS.decode,
    Topic.REWARDS: REWARDS.decode,
    Topic.ROLLOUT_EVENTS: ROLLOUT_EVENTS.decode,
}
_GROUPS, _MEMBERS = 16, 4
"""Of the small run."""


class Past(msgspec.Struct):
    """A run's records, and how it made them."""

    topics: Topics
    rules: StreamRules
    run: str
    records: dict[TopicPartition, list[Record]]


def small_past() -> Past:
    """Of a run in memory."""
    rules = config()
    source = SourceRun(rules)
    for number in range(_GROUPS * _MEMBERS):
        index, member = divmod(number, _MEMBERS)
        group = GroupRef(id=f"{RUN_HASH}{index:016x}", size=_MEMBERS, member=member, index=index)
        for item in attempt(number, group):
            source.feed(item)
    return _past(source.past(has_bodies=True), TOPICS, rules, RUN_HASH)


def past_of(path: Path) -> Past:
    """Of a run that has ended."""
    run_dir = RunDir.open(path)
    with open_broker(run_dir) as servers:
        wiring = Wiring(run_dir, bootstrap_servers=servers)
        return _past(wiring.log(is_history=True), wiring.topics, wiring.stream_rules(), wiring.record.hash)


def _past(log: Log, topics: Topics, rules: StreamRules, run: str) -> Past:
    records: dict[TopicPartition, list[Record]] = {}
    for topic in (*_RAW, Topic.EPISODES, Topic.TRANSITIONS):
        name = topics.name(topic)
        records |= {TopicPartition(name, number): [] for number in log.offsets(name)}
        for record in read_to_end(log, name):
            records[TopicPartition(name, record.partition)].append(record)
    return Past(topics, rules, run, records)


class Repeated:
    """A log that holds a past so many times, each time under other ids and later; nothing can be written to it."""

    def __init__(self, past: Past, copies: int) -> None:
        self._past, self._copies = past, copies
        hex_, raw = past.run.encode(), re.escape(bytes.fromhex(past.run))
        self._ids = re.compile(rb"(%b)([0-9a-f]{8})|(%b)(.{4})" % (hex_, raw), re.DOTALL)
        times = [one.timestamp_ms for records in past.records.values() for one in records]
        self._lasts_ms = max(times) - min(times) + 1000
        self._sizes = {where: len(records) for where, records in past.records.items()}

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        """Of each partition."""
        sizes = {where.partition: size for where, size in self._sizes.items() if where.topic == topic}
        return {number: Offsets(0, size * self._copies) for number, size in sizes.items()}

    def tail(self, starts: Mapping[TopicPartition, int]) -> _Reader:
        """A reader."""
        return _Reader(self, dict(starts))

    def record(self, where: TopicPartition, offset: int) -> Record:
        """The one at an offset."""
        copy, place = divmod(offset, self._sizes[where])
        found = self._past.records[where][place]
        renamed = partial(self._ids.sub, partial(_renamed, copy=copy))
        return msgspec.structs.replace(
            found,
            offset=offset,
            key=renamed(found.key) if found.key is not None else None,
            value=renamed(found.value) if found.value is not None and where.topic in self._raw else b"",
            headers=tuple((name, self._moved(renamed(value), copy, name)) for name, value in found.headers),
            timestamp_ms=found.timestamp_ms + copy * self._lasts_ms,
        )

    @property
    def _raw(self) -> set[str]:
        return {self._past.topics.name(topic) for topic in _RAW}

    def _moved(self, value: bytes, copy: int, name: str) -> bytes:
        if name != MADE_OF_HEADER or copy == 0:
            return value
        made = msgspec.json.decode(value)

        def moved(positions: Positions) -> Positions:
            found: Positions = {}
            for at, ranges in positions.items():
                topic, _, number = at.rpartition("/")
                size = self._sizes[TopicPartition(self._past.topics.name(Topic(topic)), int(number))] * copy
                found[at] = [(begin + size, end + size) for begin, end in ranges]
            return found

        if "parts" in made:
            made["parts"] = {key: moved(positions) for key, positions in made["parts"].items()}
        if "feedback" in made:
            made["feedback"] = moved(made["feedback"])
        return msgspec.json.encode(msgspec.convert(made, GroupMadeOf if "closed_by" not in made else MadeOf))

    def topic_id(self, topic: str) -> str:
        """None."""
        return ""


def _renamed(found: re.Match[bytes], copy: int) -> bytes:
    if found[1] is not None:
        return found[1] + b"%08x" % (int(found[2], 16) ^ copy)
    return found[3] + (int.from_bytes(found[4], "big") ^ copy).to_bytes(4, "big")


class _Reader:
    def __init__(self, log: Repeated | Held, positions: dict[TopicPartition, int]) -> None:
        self._log, self._next = log, positions
        self._ends = {where: log.offsets(where.topic)[where.partition].end for where in positions}

    def read(self, *, max_records: int = 500, timeout_s: float = 0.1) -> Sequence[Record]:
        found: list[Record] = []
        for where, at in self._next.items():
            until = min(self._ends[where], at + max_records - len(found))
            found += [self._log.record(where, offset) for offset in range(at, until)]
            self._next[where] = until
        return found

    def positions(self) -> Mapping[TopicPartition, int]:
        return dict(self._next)

    def close(self) -> None: ...


class Held(Repeated):
    """The same, made beforehand."""

    def __init__(self, past: Past, copies: int) -> None:
        super().__init__(past, copies)
        make = super().record
        self._made = {where: [make(where, at) for at in range(size * copies)] for where, size in self._sizes.items()}

    def record(self, where: TopicPartition, offset: int) -> Record:
        """As made."""
        return self._made[where][offset]


class Sink:
    """A log that forgets what it is given, and has acknowledged it."""

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        """Nothing lies there."""
        return {0: Offsets(0, 0)}

    def tail(self, starts: Mapping[TopicPartition, int]) -> Sink:
        """A reader."""
        return self

    def read(self, *, max_records: int = 500, timeout_s: float = 0.1) -> Sequence[Record]:
        """Of nothing."""
        return ()

    def positions(self) -> Mapping[TopicPartition, int]:
        """At the end."""
        return {}

    def writer(self) -> Sink:
        """A writer."""
        return self

    def append(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[Position]:
        """Forgotten."""
        done: Future[Position] = Future()
        done.set_result(Position(topic, 0, 0))
        return done

    def close(self, timeout_s: float = 10.0) -> None:
        """Nothing to wait for."""


def bounds_in(log: Repeated, past: Past) -> dict[TopicPartition, Offsets]:
    """All of the raw topics."""
    names = [past.topics.name(topic) for topic in _RAW]
    return {TopicPartition(name, number): at for name in names for number, at in log.offsets(name).items()}


def bare(log: Any, past: Past) -> tuple[int, int]:
    """Reads and parses each raw record: (records, spans)."""
    topics = {past.topics.name(topic): topic for topic in _RAW}
    num_records = num_spans = 0
    for where, at in bounds_in(log, past).items():
        reader, decode = log.tail({where: 0}), _DECODE.get(topics[where.topic], len)
        while chunk := reader.read():
            for record in chunk:
                told = decode(record.value or b"")
                if topics[where.topic] is Topic.OTLP_SPANS:
                    num_spans += sum(len(one.spans) for many in told.resource_spans for one in many.scope_spans)
            num_records += len(chunk)
        assert at.end == 0 or num_records
    return num_records, num_spans


def replayed(log: Any, past: Past, tell: Callable[[ReplayProgress], None]) -> ReplayProgress:
    """All of it, written to a sink."""
    recorded = read_recorded(log, past.topics, past.rules.runs)
    history = History(bounds=bounds_of(recorded, Window(), bounds_in(log, past), {}), recorded=recorded)
    folds = {stage: build_fold(stage, past.rules, past.topics) for stage in STREAMS}
    reward = Rewarder(past.rules.air, Metrics())
    again = partial(make_again, rules=past.rules, topics=past.topics, metrics=Metrics(), reward=reward)
    refold = Refold(folds, again, rate_again, past.topics, recorded)
    sink: Any = Sink()
    return replay(history, log, refold, target=sink, topics=past.topics, stop=threading.Event(), tell=tell)


def timed(what: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds, and what came of it."""
    began = time.process_time()
    found = what()
    return time.process_time() - began, found


def resident_mib() -> float:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run that has ended")
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--long", type=int, default=0)
    arguments = parser.parse_args()
    past = past_of(arguments.run) if arguments.run else small_past()
    raw = {past.topics.name(topic) for topic in _RAW}
    size = sum(len(records) for where, records in past.records.items() if where.topic in raw)
    held = Held(past, max(1, arguments.records // size))
    bare_s, (num_records, num_spans) = timed(partial(bare, held, past))
    recorded_s, recorded = timed(partial(read_recorded, held, past.topics, past.rules.runs))
    merge_s, _ = timed(lambda: sum(1 for _ in merged(held, bounds_in(held, past))))
    replay_s, done = timed(partial(replayed, held, past, lambda _: None))
    print(f"{num_records} records, {num_spans} spans, {len(recorded.episodes)} episodes; CPU seconds of one core")
    for name, seconds in (("bare", bare_s), ("recorded", recorded_s), ("merge", merge_s), ("replay", replay_s)):
        print(f"{name:10} {seconds:8.2f} s {num_spans / seconds:9.0f} spans/s {num_records / seconds:9.0f} records/s")
    print(f"replay is {replay_s / bare_s:.1f} bare loops; made: {dict(done.counts)}")
    if arguments.long:
        _long(past, arguments.long // size)


def _long(past: Past, copies: int) -> None:
    log = Repeated(past, copies)
    before, told = resident_mib(), list[tuple[int, float]]()

    def tell(progress: ReplayProgress) -> None:
        if progress.num_read * 10 // progress.num_records >= len(told):
            told.append((progress.num_read, resident_mib()))

    done = replayed(log, past, tell)
    told.append((done.num_read, resident_mib()))
    print(f"before {before:.0f} MiB; {done.num_read} records, {done.counts['episodes']} episodes")
    for num_read, mib in told:
        print(f"{num_read:9} records {mib:8.0f} MiB")


if __name__ == "__main__":
    main()
