"""A topic that is deleted and made anew under a worker that runs: it stops, whatever the new one's offsets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.memory_log import MemoryLog
from tests.streams.shell.counting_fold import CountingFold
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.positions import TopicStart
from tracegrad.schemas.errors import LogGapError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.protocol import Offsets, TopicPartition
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import INPUTS, Stage, Topics
from tracegrad.streams.shell import worker
from tracegrad.streams.shell.config import StreamsHandles, WorkerWaits

TOPICS = Topics(run=RunName("run"))
WHERE = TopicPartition(TOPICS.name(INPUTS[Stage.ASSEMBLE][0]), 0)


class _Admin:
    """A cluster on which a topic has ten records, and an id."""

    def __init__(self) -> None:
        self.id = "first"
        self.num_looks = 0

    def topic_id(self, topic: str) -> str:
        self.num_looks += 1
        return self.id

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [WHERE]

    def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offsets]:
        return dict.fromkeys(partitions, Offsets(0, 10))


class _Seam:
    """A Faust app that runs, and brings nothing."""

    crash_reason, is_rebalancing = None, False

    def __init__(self, *_: Any, **__: Any) -> None:
        self.app = SimpleNamespace(start=lambda: asyncio.sleep(0))

    def consume(self, *_: Any) -> None:
        pass

    def on_rebalance(self, **_: Any) -> None:
        pass

    async def stop(self, **_: Any) -> bool:
        return True


async def test_a_topic_made_anew_under_a_running_worker_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets lie within the new one too, so only the id tells; a worker that runs looks every 5 s."""
    assert WorkerWaits().liveness_s == 5.0
    monkeypatch.setattr(worker, "FaustSeam", _Seam)
    log, admin = KafkaLog("127.0.0.1:1", starts={WHERE.topic: TopicStart("first")}), _Admin()
    vars(log)["admin"] = admin
    handles = StreamsHandles(bootstrap_servers="127.0.0.1:1", data_dir=str(tmp_path), partitions=1)
    waits = WorkerWaits(liveness_s=0.01)
    made = worker._Worker(CountingFold(), handles, TOPICS, log, MemoryLog().writer(), Metrics(), lambda: None, waits)
    made._assignment.is_ready, made._assignment.starts = True, {WHERE: 10}
    stop = threading.Event()
    serving = asyncio.create_task(made.serve(stop))
    async with asyncio.timeout(20):
        while admin.num_looks < 3:
            await asyncio.sleep(0.01)
        assert not serving.done(), "the same topic is no reason to stop"
        admin.id, asked = "second", admin.num_looks
        while not serving.done() and admin.num_looks < asked + 5:
            await asyncio.sleep(0.01)
    stop.set()
    with pytest.raises(LogGapError, match=rf"{WHERE.topic}.*id first.*got second.*made anew.*--run NAME"):
        await serving
