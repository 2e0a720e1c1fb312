"""The process: it serves until told to stop, and fails in ways its supervisor understands."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest

from tests.memory_log import MemoryLog
from tests.producers.llm_gateway.harness import TOPICS, config
from tracegrad.producers.llm_gateway.app import run
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.metrics import Metrics

pytestmark = pytest.mark.slow


def test_it_serves_until_stop_is_set() -> None:
    """Health needs no engine."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stop, ready = threading.Event(), threading.Event()

    def ask() -> None:
        for _ in range(500):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                ready.set()
                break
            except OSError:
                stop.wait(0.01)
        stop.set()

    asking = threading.Thread(target=ask)
    asking.start()
    run(*config("http://127.0.0.1:9", port=port), topics=TOPICS, log=log, stop=stop, metrics=Metrics())
    asking.join(10)
    assert ready.is_set()


def test_a_taken_port_is_unavailable() -> None:
    """The supervisor tries again; it may be the predecessor that still ends."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match="port"):
            run(
                *config("http://127.0.0.1:9", port=taken.getsockname()[1]),
                topics=TOPICS,
                log=log,
                stop=threading.Event(),
                metrics=Metrics(),
            )


def test_settings_that_cannot_work_are_refused() -> None:
    """Nobody listens to the world without a token."""
    with pytest.raises(ConfigurationError, match="token"):
        config("http://127.0.0.1:9", host="0.0.0.0")
