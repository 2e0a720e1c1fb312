"""What a runner writes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.memory_log import MemoryLog
from tracegrad.producers.runner.journal import Journal
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topic, Topics

TOPICS = Topics(run=RunName("mine"))


def test_an_append_waits_for_a_log_that_is_away_until_it_is_stopped(memory_log: MemoryLog) -> None:
    """The error of the last try ends it."""
    memory_log.create_topics(TOPICS, policies=["policy"])
    stop = threading.Event()

    async def scenario() -> None:
        journal = Journal(memory_log, TOPICS, "7c1f3e9a", starts=None, stop=stop, metrics=Metrics())
        memory_log.fail_next(UnavailableError("away"))
        await journal.reward("r", b"v")
        assert [record.value for record in memory_log.records(TOPICS.name(Topic.REWARDS))] == [b"v"]
        stop.set()
        memory_log.fail_next(UnavailableError("away"))
        with pytest.raises(UnavailableError):
            await journal.reward("r", b"v")

    asyncio.run(scenario())
