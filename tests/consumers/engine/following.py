"""Weight sync in a thread, on an engine of the tests and a log in memory."""

from __future__ import annotations

from tests.engine_fixture import RunningEngine
from tests.memory_log import MemoryLog
from tests.serving import ENGINE_TOKEN, Background
from tracegrad.consumers.engine import weight_sync
from tracegrad.consumers.engine.weight_sync import WeightSyncHandles
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics


def following(engine: RunningEngine, log: MemoryLog, topics: Topics) -> Background:
    """The engine follows what this log publishes, until the context ends."""
    handles = WeightSyncHandles(
        policy="policy",
        engine_id="e0",
        engine_url=engine.url,
        engine_token=ENGINE_TOKEN,
        weight_root=str(engine.weight_root),
    )
    return Background(lambda stop: weight_sync.run(handles, topics=topics, log=log, stop=stop, metrics=Metrics()))
