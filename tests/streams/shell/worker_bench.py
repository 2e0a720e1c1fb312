"""What the worker's tests on a real broker share: processes that can be killed, records to feed, outputs to compare."""

from __future__ import annotations

import contextlib
import os
import signal
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
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.topics import INPUTS, Stage, Topic, Topics
from tracegrad.streams.config import StreamsHandles
from tracegrad.streams.shell.liveness import patiently

__all__ = ["Bench", "Worker"]

_ROOT = Path(__file__).resolve().parents[3]


class Worker:
    """One process; its output lies in `log_path`."""

    def __init__(self, plan: Plan, log_path: Path, env: dict[str, str]) -> None:
        self.log_path = log_path
        with log_path.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.streams.shell.worker_process", msgspec.json.encode(plan).decode()],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT), **env},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.process.send_signal(signal.SIGKILL)
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

    def __init__(self, log: KafkaLog, topics: Topics, folder: Path, *, stage: Stage = Stage.ASSEMBLE) -> None:
        self.log = log
        self.topics = topics
        self.folder = folder
        self.stage = stage
        self.workers: list[Worker] = []
        self.writer = log.writer()

    def start(
        self,
        name: str,
        *,
        is_static: bool = True,
        counting: dict[str, Any] | None = None,
        max_delay_s: float = 0.0,
        env: dict[str, str] | None = None,
        session_timeout_s: float = 6.0,
    ) -> Worker:
        """Starts a worker; `name` is its instance id when it is static."""
        plan = Plan(
            rules=config(),
            handles=StreamsHandles(
                bootstrap_servers=self.log.bootstrap_servers,
                data_dir=str(self.folder / "data"),
                instance_id=name if is_static else None,
            ),
            session_timeout_s=session_timeout_s,
            commit_interval_s=0.3,
            stage=self.stage,
            topics=self.topics,
            counting=counting,
            max_delay_s=max_delay_s,
        )
        worker = Worker(plan, self.folder / f"{name}.log", env or {})
        self.workers.append(worker)
        return worker

    def stop(self) -> None:
        """Ends what still runs."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()
        self.writer.close()

    def feed(self, *parts: Part) -> None:
        """Appends parts; not flushed."""
        name = self.topics.name(Topic.EPISODE_EVENTS)
        for part in parts:
            self.writer.append(name, key=part.id.encode(), value=msgspec.json.encode(part))

    def records(self, topic: Topic) -> list[Record]:
        """Everything on a topic now."""
        name = self.topics.name(topic)
        ends = {partition: kept.end for partition, kept in patiently(lambda: self.log.offsets(name)).items()}
        reader = patiently(lambda: self.log.tail([name]))
        records: list[Record] = []
        with contextlib.closing(reader):
            deadline = time.monotonic() + 60
            while any(offset < ends[where.partition] for where, offset in reader.positions().items()):
                records.extend(reader.read(max_records=5000, timeout_s=0.2))
                assert time.monotonic() < deadline, "the topic was not read to its end in 60 s"
        return records

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
            committed = patiently(lambda n=name: self.log.committed(self.topics.group(self.stage), n))  # type: ignore[misc]
            for partition, kept in patiently(lambda n=name: self.log.offsets(n)).items():  # type: ignore[misc]
                total += kept.end - committed.get(partition, kept.begin)
        return total

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
def bench(log: KafkaLog, topics: Topics, folder: Path, *, stage: Stage = Stage.ASSEMBLE) -> Iterator[Bench]:
    """A bench that leaves no process behind."""
    made = Bench(log, topics, folder, stage=stage)
    try:
        yield made
    finally:
        made.stop()
