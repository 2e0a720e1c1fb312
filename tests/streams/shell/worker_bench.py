"""What the worker's tests on a real broker share: processes that can be killed, records to feed, outputs to compare."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.streams.make import config
from tests.streams.shell.counting_fold import Part, Sum
from tests.streams.shell.worker_process import Plan
from tracegrad.compose.die_with_parent import guarded
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.retry import retry
from tracegrad.schemas.topics import INPUTS, Stage, Topic, Topics
from tracegrad.streams.shell.config import StreamsHandles

_ROOT = Path(__file__).resolve().parents[3]


class Worker:
    """One process; its output lies in `log_path`."""

    def __init__(self, plan: Plan, log_path: Path) -> None:
        self.log_path = log_path
        command = [sys.executable, "-m", "tests.streams.shell.worker_process", msgspec.json.encode(plan).decode()]
        with log_path.open("ab") as out:
            self.process = subprocess.Popen(
                guarded(command),
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        """SIGKILL, and waits for the end; nothing when it has ended."""
        self.process.kill()
        self.process.wait(30)

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        return self.process.wait(60)

    @property
    def output(self) -> str:
        """What it logged."""
        return self.log_path.read_text(errors="replace")


class Bench:
    """Workers of one stage on one run's topics."""

    def __init__(self, log: KafkaLog, topics: Topics, folder: Path) -> None:
        self.log = log
        self.topics = topics
        self.folder = folder
        self.stage = Stage.ASSEMBLE
        self.workers: list[Worker] = []
        self.writer = log.writer()

    def start(self, name: str, *, is_static: bool = True, is_killed_before_marker: bool = False, **plan: Any) -> Worker:
        """Starts a worker; `name` is its instance id when it is static, `plan` as Plan."""
        handles = StreamsHandles(
            bootstrap_servers=self.log.bootstrap_servers,
            data_dir=str(self.folder / "data"),
            instance_id=name if is_static else None,
            partitions=4,
        )
        kill_once = str(self.folder / "killed") if is_killed_before_marker else None
        given = Plan(rules=config(), handles=handles, stage=self.stage, topics=self.topics, kill_once=kill_once, **plan)
        worker = Worker(given, self.folder / f"{name}.log")
        self.workers.append(worker)
        return worker

    def stop(self) -> None:
        """Ends what still runs."""
        for worker in self.workers:
            worker.kill()
        self.writer.close()

    def feed(self, *parts: Part) -> None:
        """Appends parts; not flushed."""
        name = self.topics.name(Topic.EPISODE_EVENTS)
        for part in parts:
            self.writer.append(name, key=part.id.encode(), value=msgspec.json.encode(part))

    def records(self, topic: Topic) -> list[Record]:
        """Everything on a topic now."""
        return list(read_to_end(self.log, self.topics.name(topic), patience_s=60))

    def bodies(self) -> dict[str, set[bytes]]:
        """The distinct outputs of each id of CountingFold."""
        bodies: dict[str, set[bytes]] = defaultdict(set)
        for record in self.records(Topic.EPISODES):
            assert record.value is not None
            bodies[(record.key or b"").decode()].add(record.value)
        return bodies

    @property
    def uncommitted(self) -> int:
        """Input records at or behind the committed offsets, those in the writer's hands included."""
        self.writer.flush(30)
        total = 0
        for topic in INPUTS[self.stage]:
            name = self.topics.name(topic)
            total += retry(lambda n=name: self._lag(n), doing="asking Kafka", patience_s=20)  # type: ignore[misc]
        return total

    def _lag(self, name: str) -> int:
        committed = self.log.committed(self.topics.group(self.stage), name)
        return sum(kept.end - committed.get(number, kept.begin) for number, kept in self.log.offsets(name).items())

    def wait(self, until: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
        """Waits for a condition; fails with the workers' last words."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {w.log_path.name}\n{w.output[-3000:]}" for w in self.workers)
                raise AssertionError(f"expected {what} within {timeout_s} s\n{tails}")
            time.sleep(0.1)


def expected(id_: str, parts: dict[int, int]) -> bytes:
    """What CountingFold emits for an id with these parts."""
    return msgspec.json.encode(Sum(id=id_, parts=sorted(parts.items())))


@contextlib.contextmanager
def bench(log: KafkaLog, topics: Topics, folder: Path) -> Iterator[Bench]:
    """A bench that leaves no process behind."""
    made = Bench(log, topics, folder)
    try:
        yield made
    finally:
        made.stop()
