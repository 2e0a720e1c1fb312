"""What the index costs: episodes a second of one core, bytes an episode, milliseconds a question.

    PYTHONPATH=. python benchmarks/index.py [--episodes 1000000] [--path FILE]

Episodes of a small run that the real folds made, again and again under other ids, in groups of eight, with the groups'
`transitions` and a step for each eight of them; handed over in memory, so that no Kafka is in the figures. Beside it a
bare loop that decodes each episode and its header and throws them away. By the process's CPU time: on a busy machine
compare within one run only.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tests.consumers.audit.small_run import small_run
from tests.streams.make import RUN_HASH, TOPICS
from tracegrad.consumers.episode_facts import KINDS
from tracegrad.consumers.index.build import catch_up
from tracegrad.consumers.index.file import connect
from tracegrad.consumers.index.query import Question, count, find
from tracegrad.schemas.log.made_of import EpisodeRef, GroupMadeOf, MadeOf, made_of, made_of_header
from tracegrad.schemas.log.protocol import Offsets, Record, TopicPartition
from tracegrad.schemas.log.where import parse
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.transitions import decode_group, encode_group
from tracegrad.schemas.topics import Topic

_MEMBERS, _GROUPS = 8, 8
"""Episodes of a group, groups of a step."""
_QUESTIONS = (
    ("", "-at", 20),
    ("reward=1 version=1", "-at", 20),
    ("agent=calc* purpose=train", "-at", 20),
    ("task=task-77", "-at", 20),
    ("task=task-7* reward>0.5", "-reward", 20),
    ("excluded!=none", "-at", 20),
    ("step=12", "episode", 20),
    ("episode=0123abcd77*", "-at", 20),
    ("tokens>100 agent!=calculator", "-at", 20),
    ("turns<0", "-duration_s", 20),
)
_COUNTS = ("reward=1", "task=task-7*", "reward=1 agent=calc*")


class MadeLog:
    """A log of so many episodes, made while they are read; each topic has one partition."""

    def __init__(self, num: int) -> None:
        self.num = num
        steps = -(-num // (_MEMBERS * _GROUPS))
        ends = {
            Topic.EPISODES: num,
            Topic.TRANSITIONS: -(-num // _MEMBERS),
            Topic.TRAINING_STEPS: steps,
            Topic.WEIGHTS: 0,
            Topic.ADVANTAGES: 0,
        }
        self._ends = {TOPICS.name(topic): end for topic, end in ends.items()}

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        """All of it is kept."""
        return {0: Offsets(0, self._ends[topic])}

    def topic_id(self, topic: str) -> str:
        """Always the same."""
        return topic

    def tail(self, starts: Mapping[TopicPartition, int]) -> MadeReader:
        """From the beginning, or from the end."""
        is_new = not any(starts.values())
        self.reader = MadeReader(made(self.num) if is_new else iter(()), starts)
        return self.reader


class MadeReader:
    """Hands records over as a consumer does."""

    def __init__(self, records: Iterator[Record], starts: Mapping[TopicPartition, int]) -> None:
        self._records, self._next = records, dict(starts)
        self.num_bytes = 0
        self.making_s = 0.0
        """Of CPU, which a broker and its client would take in another way."""

    def read(self, *, max_records: int = 500, timeout_s: float = 0.1) -> Sequence[Record]:
        """The next ones."""
        began = time.process_time()
        found = list(itertools.islice(self._records, max_records))
        for record in found:
            self._next[TopicPartition(record.topic, 0)] = record.offset + 1
            self.num_bytes += len(record.value or b"")
        self.making_s += time.process_time() - began
        return found

    def positions(self) -> Mapping[TopicPartition, int]:
        """Of each topic."""
        return dict(self._next)

    def close(self) -> None:
        """There is nothing to release."""


def made(num: int) -> Iterator[Record]:
    """Episodes; behind each group its transitions, behind each batch its step. Ids of a kind have one length, so bytes
    are exchanged for bytes."""
    run, draw = small_run(), random.Random(0)
    episodes = [one for one in run.log[Topic.EPISODES] if b'"purpose":"train"' in (one.value or b"")]
    known = [EPISODES.decode(one.value) for one in episodes]
    summary, rows = decode_group(run.values(Topic.TRANSITIONS)[0])
    template = msgspec.structs.replace(
        summary, members=tuple(msgspec.structs.replace(summary.members[0], rollout_id=f"r{n}") for n in range(_MEMBERS))
    )
    arrow = encode_group(template, rows)
    step = TRAINING_STEPS.decode(run.values(Topic.TRAINING_STEPS)[0])
    assert isinstance(step, TrainingStep)
    members = tuple(EpisodeRef(id="0" * 32, revision=0, sha256="0" * 64) for _ in range(_MEMBERS))
    number, batch = 0, list[str]()
    for index in itertools.count():
        group, first = f"{RUN_HASH}{draw.getrandbits(64):016x}", number
        for _ in range(min(_MEMBERS, num - number)):
            at = draw.randrange(len(episodes))
            record, episode = episodes[at], known[at]
            id_ = f"{RUN_HASH}{draw.getrandbits(96):024x}".encode()
            of_group, task = (
                (episode.group.id if episode.group else "").encode(),
                f"task-{draw.randrange(1000)}".encode(),
            )
            value = (record.value or b"").replace(episode.episode_id.encode(), id_).replace(of_group, group.encode())
            headers = tuple((key, told.replace(episode.episode_id.encode(), id_)) for key, told in record.headers)
            yield _record(Topic.EPISODES, number, value.replace(b"task-1", task, 1), headers)
            number += 1
        header = made_of_header(GroupMadeOf(group=group, episodes=members[: number - first]))
        yield _record(Topic.TRANSITIONS, index, arrow.replace(summary.group_id.encode(), group.encode()), header)
        batch.append(group)
        if len(batch) == _GROUPS or number == num:
            at_step = index // _GROUPS + 1
            left_out = {batch[-1]: "stale"} if at_step % 100 == 0 else {}
            trained = tuple(one for one in batch if one not in left_out)
            fields = {"step": at_step, "version": at_step, "group_ids": trained, "excluded_ids": left_out}
            told = msgspec.structs.replace(step, begin_offset=index + 1 - len(batch), next_offset=index + 1, **fields)
            yield _record(Topic.TRAINING_STEPS, at_step - 1, TRAINING_STEPS.encode(told))
            batch.clear()
        if number == num:
            return


def _record(topic: Topic, offset: int, value: bytes, headers: tuple[tuple[str, bytes], ...] = ()) -> Record:
    return Record(
        topic=TOPICS.name(topic),
        partition=0,
        offset=offset,
        key=None,
        value=value,
        headers=headers,
        timestamp_ms=offset,
    )


def bare(num: int) -> float:
    """Seconds to decode all episodes."""
    name, reader, began = TOPICS.name(Topic.EPISODES), MadeLog(num).tail({}), time.process_time()
    while records := reader.read(max_records=2_000):
        for record in records:
            if record.topic == name:
                EPISODES.decode(record.value)
                made_of(record.headers, MadeOf)
    return time.process_time() - began - reader.making_s


def main() -> None:
    """Builds, asks, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--path", type=Path, default=None, help="where the index is made; else it is thrown away")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(arguments.episodes, arguments.path or Path(scratch) / "index.sqlite")


def measure(num: int, path: Path) -> None:
    """Of so many episodes; all in one run."""
    bare_s = bare(num)
    connection, log = connect(path), MadeLog(num)
    began, began_wall = time.process_time(), time.monotonic()
    catch_up(log, TOPICS, "policy", connection)  # type: ignore[arg-type]
    built_s, wall_s = time.process_time() - began - log.reader.making_s, time.monotonic() - began_wall
    num_bytes, making_s = log.reader.num_bytes, log.reader.making_s
    began_wall = time.monotonic()
    catch_up(log, TOPICS, "policy", connection)  # type: ignore[arg-type]
    again_ms = 1000 * (time.monotonic() - began_wall)
    print(f"{num:,} episodes; {num_bytes / num:.0f} bytes each on the log, with their share of groups and steps")
    print(f"bare loop: {num / bare_s:,.0f} episodes/s")
    print(f"index: {num / built_s:,.0f} episodes/s of CPU, {built_s / bare_s:.1f} times the bare loop's time")
    print(f"by the clock: {num / wall_s:,.0f} episodes/s; making them took {making_s / (making_s + built_s):.0%} of it")
    print(f"size: {os.path.getsize(path) / num:.0f} bytes an episode, {os.path.getsize(path) / 2**20:.0f} MiB")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")
    print(f"up to date already: {again_ms:.0f} ms")
    for text, order, limit in _QUESTIONS:
        question = Question(terms=parse(text, KINDS), order_by=order, limit=limit)
        rows, took = _timed(lambda question=question: len(list(find(connection, question))))
        print(f"{took}  {rows:9,} rows     {text or '(all)'} --order-by {order} --limit {limit}")
    for text in _COUNTS:
        question = Question(terms=parse(text, KINDS))
        rows, took = _timed(lambda question=question: count(connection, question))
        print(f"{took}  {rows:9,} counted  {text} --count")


def _timed(ask) -> tuple[int, str]:  # type: ignore[no-untyped-def]
    """(what it says, milliseconds: when first asked, and the median of five times after)."""
    times = []
    for _ in range(6):
        began = time.perf_counter()
        found = ask()
        times.append(1000 * (time.perf_counter() - began))
    return found, f"{times[0]:8.1f} ms, then {sorted(times[1:])[2]:8.1f} ms"


if __name__ == "__main__":
    main()
