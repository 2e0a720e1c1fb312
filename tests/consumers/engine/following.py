"""Weight sync in a thread, on an engine of the tests and a log in memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tests.engine_fixture import RunningEngine
from tests.memory_log import MemoryLog
from tracegrad.consumers.engine import weight_sync
from tracegrad.consumers.engine.weight_sync import WeightSyncHandles
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics

__all__ = ["following"]


@contextlib.contextmanager
def following(engine: RunningEngine, log: MemoryLog, topics: Topics) -> Iterator[None]:
    """The engine follows what this log publishes, until the context ends."""
    handles = WeightSyncHandles(
        policy="policy",
        engine_id="e0",
        engine_url=engine.url,
        weight_root=str(engine.weight_root),
    )
    stop = threading.Event()
    thread = threading.Thread(
        target=weight_sync.run,
        args=(handles,),
        kwargs={"topics": topics, "log": log, "stop": stop, "metrics": Metrics(), "poll_s": 0.1},
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
