"""An in-memory twin of schemas/log/protocol.py for fast tests: partitions, groups, futures, keys placed as by Kafka.

    log = MemoryLog()
    log.create_topics(topics, policies=["policy"])       # all topics of a run, or
    log.create_topic("t", partitions=2)                  # one
    log.records("t")                                     # all records of a topic, for assertions

    log.hold()      # acknowledgements wait ...
    log.release()   # ... until here
    log.fail_next(UnavailableError("away"))              # the next append's future ends with this
    log.truncate("t", 0, begin=5)                        # retention: offsets below 5 are gone

The contract suite (tests/compose/kafka/test_log_contract.py) runs on this and on real Kafka alike.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from tracegrad.compose.kafka.writer import partition_for
from tracegrad.schemas.errors import ConfigurationError, LogGapError, RecordError, UnavailableError
from tracegrad.schemas.log.protocol import Headers, Offsets, Position, Record, TopicPartition
from tracegrad.schemas.topics import MAX_MESSAGE_BYTES, REGISTRY, Topics


class _Partition:
    def __init__(self) -> None:
        self.begin = 0
        self.records: list[Record] = []
        """Index = offset; truncated ones stay but are out of reach."""


class MemoryLog:
    """schemas.log.Log without a broker. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.changed = threading.Condition(threading.RLock())
        self.groups: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        """Committed next offsets."""
        self.members: dict[str, list[_MemberReader]] = defaultdict(list)
        self._topics: dict[str, list[_Partition]] = {}
        self._times_made: Counter[str] = Counter()
        self._message_bytes: dict[str, int] = {}
        self._random = random.Random(0)
        self._held: list[tuple[Future[Position], Position]] | None = None
        self._failures: list[Exception] = []

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Makes a topic; an existing one stays as it is."""
        with self.changed:
            if name not in self._topics:
                self._times_made[name] += 1
            self._topics.setdefault(name, [_Partition() for _ in range(partitions)])

    def add_partitions(self, name: str, partitions: int) -> None:
        """Up to so many; keys move, as on Kafka."""
        with self.changed:
            here = self._topics[name]
            here += [_Partition() for _ in range(partitions - len(here))]

    def recreate_topic(self, name: str) -> None:
        """Deletes a topic and makes it anew, empty."""
        with self.changed:
            self.create_topic(name, len(self._topics.pop(name)))

    def create_topics(self, topics: Topics, *, policies: Sequence[str], partitions: int = 4) -> None:
        """All topics of a run."""
        counts = {"run": partitions, "policies": len(policies), "one": 1}
        for spec in REGISTRY:
            self.create_topic(topics.name(spec.topic), counts[spec.partitions])
            self._message_bytes[topics.name(spec.topic)] = topics.message_bytes(spec.topic)

    def hold(self) -> None:
        """From now on records lie on the log, but nobody is told that they are acknowledged."""
        with self.changed:
            self._held = self._held if self._held is not None else []

    def release(self, count: int | None = None) -> None:
        """Acknowledges the first `count` held appends, or all and holds no more."""
        with self.changed:
            held = self._held or []
            taken, rest = (held, None) if count is None else (held[:count], held[count:])
            self._held = rest
        for future, position in taken:
            future.set_result(position)

    def fail_next(self, error: Exception) -> None:
        """The next append does not reach the log; its future ends with this."""
        with self.changed:
            self._failures.append(error)

    def truncate(self, topic: str, partition: int, *, begin: int) -> None:
        """Deletes what lies below `begin`, as retention does."""
        with self.changed:
            self._partitions(topic)[partition].begin = begin

    def cut(self, topic: str, partition: int, *, end: int) -> None:
        """Loses what lies at and beyond `end`, as a broker that lost its disk."""
        with self.changed:
            del self._partitions(topic)[partition].records[end:]

    def records(self, topic: str) -> list[Record]:
        """All kept records of a topic, partition by partition."""
        with self.changed:
            return [record for part in self._partitions(topic) for record in part.records[part.begin :]]

    def writer(self) -> _Writer:
        """A new writer."""
        return _Writer(self)

    def tail(self, starts: Mapping[TopicPartition, int]) -> _Reader:
        """A reader by explicit assignment."""
        with self.changed:
            return _Reader(self, {where: self.checked(where, offset) for where, offset in starts.items()})

    def join(self, group: str, topics: Sequence[str]) -> _MemberReader:
        """A member of a group; partitions are dealt out in turn and again whenever a member comes or goes."""
        with self.changed:
            for topic in topics:
                self._partitions(topic)
            member = _MemberReader(self, group, topics)
            self.members[group].append(member)
            self.rebalance(group)
        return member

    def judged(self, record: Record) -> Record | None:
        """As it is."""
        return record

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        """First and next offsets."""
        with self.changed:
            return {n: Offsets(p.begin, len(p.records)) for n, p in enumerate(self._partitions(topic))}

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Committed next offsets."""
        with self.changed:
            self._partitions(topic)
            return {w.partition: offset for w, offset in self.groups[group].items() if w.topic == topic}

    def topic_id(self, topic: str) -> str:
        """Another one each time that the topic is made."""
        with self.changed:
            self._partitions(topic)
            return f"{topic}-{self._times_made[topic]}"

    def checked(self, where: TopicPartition, offset: int) -> int:
        """The offset, if it lies in the log."""
        partitions = self._partitions(where.topic)
        if where.partition >= len(partitions):
            raise ConfigurationError(f"expected a partition of {where.topic!r}, got {where.partition}")
        kept = self.offsets(where.topic)[where.partition]
        if not kept.begin <= offset <= kept.end:
            raise LogGapError(
                f"expected offset {offset} of {where}, got [{kept.begin}, {kept.end}]; start the run again"
            )
        return offset

    def rebalance(self, group: str) -> None:
        """Deals the partitions out again; a partition that moves goes on from its committed offset."""
        members = self.members[group]
        for topic in sorted({topic for member in members for topic in member.topics}):
            subscribed = [member for member in members if topic in member.topics]
            for number in range(len(self._partitions(topic))):
                where = TopicPartition(topic, number)
                owner = subscribed[number % len(subscribed)]
                for member in members:
                    if member is not owner:
                        member.next.pop(where, None)
                if where not in owner.next:
                    owner.next[where] = self.groups[group].get(where, 0)
        self.changed.notify_all()

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None = None,
    ) -> Future[Position]:
        """What every writer does."""
        future: Future[Position] = Future()
        future.set_running_or_notify_cancel()
        with self.changed:
            try:
                if self._failures:
                    raise self._failures.pop(0)
                position = self._store(topic, key, value, headers, partition, timestamp_ms)
            except Exception as error:
                future.set_exception(error)
                return future
            self.changed.notify_all()
            if self._held is not None:
                self._held.append((future, position))
                return future
        future.set_result(position)
        return future

    def _store(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Position:
        partitions = self._partitions(topic)
        limit = self._message_bytes.get(topic, MAX_MESSAGE_BYTES)
        if len(key or b"") + len(value or b"") > limit - 1024:
            raise RecordError(f"expected at most {limit} bytes, got more", reason="too_large")
        if partition is None:
            count = len(partitions)
            partition = self._random.randrange(count) if key is None else partition_for(key, count)
        if partition >= len(partitions):
            raise ConfigurationError(f"expected a partition of {topic!r}, got {partition}")
        kept = partitions[partition].records
        record = Record(
            topic=topic,
            partition=partition,
            offset=len(kept),
            key=key,
            value=value,
            headers=tuple(headers),
            timestamp_ms=timestamp_ms or int(self._clock() * 1000),
        )
        kept.append(record)
        return record.position

    def num_unacknowledged(self) -> int:
        """How many appends wait for `release`."""
        with self.changed:
            return len(self._held or ())

    def read(self, positions: dict[TopicPartition, int], max_records: int) -> list[Record]:
        """The next records of these positions, which advance."""
        found: list[Record] = []
        for where in sorted(positions):
            part = self._partitions(where.topic)[where.partition]
            self.checked(where, positions[where])
            taken = part.records[positions[where] : positions[where] + max_records - len(found)]
            positions[where] += len(taken)
            found += taken
        return found

    def _partitions(self, topic: str) -> list[_Partition]:
        if topic not in self._topics:
            raise ConfigurationError(f"expected topic {topic!r}, got none of that name; create it")
        return self._topics[topic]


class _Writer:
    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._is_closed = False

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
        if self._is_closed:
            future: Future[Position] = Future()
            future.set_exception(UnavailableError("expected an open writer, got a closed one"))
            return future
        return self._log.append(topic, key, value, headers, partition, timestamp_ms)

    def close(self, timeout_s: float = 10.0) -> None:
        self._is_closed = True


class _Reader:
    def __init__(self, log: MemoryLog, positions: dict[TopicPartition, int]) -> None:
        self._log = log
        self.next = positions

    def read(self, *, max_records: int = 500, timeout_s: float = 0.1) -> Sequence[Record]:
        deadline = time.monotonic() + timeout_s
        with self._log.changed:
            while not (found := self._log.read(self.next, max_records)):
                left = deadline - time.monotonic()
                if left <= 0 or not self._log.changed.wait(left):
                    return self._log.read(self.next, max_records)
        return found

    def positions(self) -> Mapping[TopicPartition, int]:
        return dict(self.next)

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        raise ConfigurationError("expected a reader made by join to commit with, got one made by tail")

    def close(self) -> None:
        self.next = {}


class _MemberReader(_Reader):
    def __init__(self, log: MemoryLog, group: str, topics: Sequence[str]) -> None:
        super().__init__(log, {})
        self.group = group
        self.topics = list(topics)

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        with self._log.changed:
            owned = {where: offset for where, offset in next_offsets.items() if where in self.next}
            self._log.groups[self.group].update(owned)

    def close(self) -> None:
        with self._log.changed:
            self.next = {}
            members = self._log.members[self.group]
            if self in members:
                members.remove(self)
            if members:
                self._log.rebalance(self.group)
