"""What the streams worker costs beside Faust alone: messages a second and CPU a message, in one run.

    python benchmarks/streams_worker.py [--messages 20000] [--bytes 2000] [--bootstrap-servers HOST:PORT]

Four loops over the same messages, each with a consumer group of its own: a bare Faust agent (acks off); the worker
with a fold that only acknowledges; with an identity fold, one output a message, like normalize; and with an output and
a marker for each message. CPU counts all threads of the process, the producer's too; on a busy machine go by it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.topic_admin import create_topics, plan_topics
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Stage, Topic, Topics
from tracegrad.streams.shell.config import StreamsHandles
from tracegrad.streams.shell.faust_app import FaustSeam
from tracegrad.streams.shell.worker import run_fold


class _Clock:
    """From the first message to the last one; `ended` is set at the last."""

    def __init__(self, num_messages: int, warm_up: int) -> None:
        self._left = num_messages
        self._warm = num_messages - warm_up
        self._start = (0.0, 0.0)
        self.num_timed = self._warm
        self.wall_s = self.cpu_s = 0.0
        self.ended = threading.Event()

    def tick(self) -> None:
        """One message was taken."""
        if self._left == self._warm:
            self._start = (time.perf_counter(), time.process_time())
        self._left -= 1
        if self._left == 0:
            self.wall_s = time.perf_counter() - self._start[0]
            self.cpu_s = time.process_time() - self._start[1]
            self.ended.set()


class _Fold:
    """Emits what it was told to for each message."""

    stage = Stage.ASSEMBLE

    def __init__(self, clock: _Clock, marker_topic: Topic | None, outputs: bool) -> None:
        self.marker_topic = marker_topic
        self._clock = clock
        self._outputs = outputs

    num_open = 0

    def reset(self) -> None: ...

    def restore(self, markers: Iterable[Record]) -> None: ...

    def fold(self, record: Record) -> Emission:
        self._clock.tick()
        outputs = (Output(topic=Topic.EPISODES, key=record.key, value=record.value or b""),) if self._outputs else ()
        marker = None
        if self.marker_topic:
            marker = Output(topic=self.marker_topic, key=record.key, value=b"{}", partition=record.partition)
        return Emission(outputs=outputs, marker=marker, done=(record.position,))

    def propose(self, now_s: float, now_ms: int = 0) -> Sequence[Output]:
        return ()


async def _bare(handles: StreamsHandles, topics: Topics, clock: _Clock) -> None:
    seam = FaustSeam(handles, stage=Stage.ASSEMBLE, topics=topics)

    async def handle(message: Any) -> None:
        clock.tick()

    seam.consume(handle, lambda error: None)
    await seam.app.start()
    while not clock.ended.is_set():
        await asyncio.sleep(0.05)
    await seam.stop(leave=True, timeout_s=15.0)


def _measure(name: str, loop: Callable[[_Clock], None], num_messages: int, bare_cpu_us: float | None) -> float:
    clock = _Clock(num_messages, warm_up=num_messages // 10)
    loop(clock)
    cpu_us = clock.cpu_s / clock.num_timed * 1e6
    ratio = f"{cpu_us / bare_cpu_us:5.2f} x" if bare_cpu_us else "      -"
    print(f"{name:32} {clock.num_timed / clock.wall_s:8.0f} /s {cpu_us:7.1f} us CPU a message  {ratio}")
    return cpu_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=2_000)
    parser.add_argument("--bootstrap-servers")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = arguments.bootstrap_servers
        if servers is None:
            servers = stack.enter_context(LocalKafka(folder / "kafka")).bootstrap_servers
        _run(KafkaLog(servers), folder, arguments.messages, arguments.bytes)


def _run(log: KafkaLog, folder: Path, num_messages: int, num_bytes: int) -> None:
    topics = Topics(run=RunName(f"bench-{uuid.uuid4().hex[:8]}"))
    create_topics(log, topics, plan_topics(topics, policies=["policy"], kafka=KafkaConfig()))
    writer = log.writer()
    for n in range(num_messages):
        key = b"%d" % (n % 997)
        writer.append(topics.name(Topic.EPISODE_EVENTS), key=key, value=key.ljust(num_bytes, b"."))
    writer.close(60.0)

    def handles(name: str) -> StreamsHandles:
        return StreamsHandles(bootstrap_servers=log.bootstrap_servers, data_dir=str(folder / name), partitions=4)

    def group(name: str) -> Topics:
        # Another run name would mean other topics; another name of the group is enough.
        return _Group(run=topics.run, prefix=topics.prefix, renames=topics.renames, suffix=name)

    def bare(clock: _Clock) -> None:
        asyncio.run(_bare(handles("bare"), group("bare"), clock))

    def worker(name: str, marker_topic: Topic | None, outputs: bool) -> Callable[[_Clock], None]:
        def loop(clock: _Clock) -> None:
            fold = _Fold(clock, marker_topic, outputs)
            run_fold(fold, handles(name), topics=group(name), log=log, stop=clock.ended, metrics=Metrics())

        return loop

    bare_cpu_us = _measure("bare Faust agent", bare, num_messages, None)
    _measure("worker, acknowledges only", worker("ack", None, False), num_messages, bare_cpu_us)
    _measure("worker, one output (normalize)", worker("identity", None, True), num_messages, bare_cpu_us)
    _measure("worker, output and marker", worker("marker", Topic.CLOSED_EPISODES, True), num_messages, bare_cpu_us)


class _Group(Topics, frozen=True, kw_only=True):
    """The same topics under another consumer group."""

    suffix: str = ""

    def group(self, stage: Stage) -> str:
        return f"{super().group(stage)}.{self.suffix}"


if __name__ == "__main__":
    main()
