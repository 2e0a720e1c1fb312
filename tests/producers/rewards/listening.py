"""A rewards gateway that listens, over a log in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.memory_log import MemoryLog
from tests.producers.keys import KEY, RUN_HASH
from tests.serving import Background, free_port, is_healthy, until
from tracegrad.producers.rewards.app import run
from tracegrad.producers.rewards.config import FeedbackConfig, FeedbackHandles
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics


@contextmanager
def listening(log: MemoryLog, topics: Topics, config: FeedbackConfig) -> Iterator[str]:
    """Its URL; the run's topics are made."""
    log.create_topics(topics, policies=["policy"])
    port = free_port()
    handles = FeedbackHandles(port=port, run_hash=RUN_HASH, key=KEY)

    def serve_until(stop: threading.Event) -> None:
        run(config, handles, topics=topics, log=log, stop=stop, metrics=Metrics())

    with Background(serve_until):
        until(lambda: is_healthy(f"http://127.0.0.1:{port}"))
        yield f"http://127.0.0.1:{port}"
