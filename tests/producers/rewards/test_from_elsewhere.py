"""examples/feedback/from_elsewhere.py: scores of a Langfuse that answers as its client's types say, onto `rewards`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.memory_log import MemoryLog
from tests.producers.keys import KEY, RUN_HASH, TOPICS
from tests.producers.rewards.listening import listening
from tests.serving import Background, serve
from tracegrad.producers.client.feedback import REWARD_TOKEN, REWARDS_URL
from tracegrad.producers.feedback_names import RangeConfig
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.schemas.credentials import credential, feedback_holder
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "feedback" / "from_elsewhere.py"
READINGS = json.loads((Path(__file__).parent / "langfuse.json").read_text())["readings"]
TRACE = "5e" * 16
NAMES = {"thumb": RangeConfig(low=0.0, high=1.0), "quality": RangeConfig(low=0.0, high=5.0)}


class Langfuse:
    """A project whose people rated, and then changed their mind."""

    def __init__(self) -> None:
        self.reading = 0
        self.authorizations: set[str] = set()
        self.app = Starlette(routes=[Route("/api/public/v3/scores", self.scores)])

    async def scores(self, request: Request) -> Response:
        """A page of two."""
        self.authorizations.add(request.headers["authorization"].split()[0])
        asked = request.query_params
        if asked["limit"] != "100" or not asked["fromTimestamp"]:
            return Response(status_code=400)
        return JSONResponse(READINGS[self.reading][asked.get("cursor") == "next"])


@pytest.fixture
def langfuse() -> Iterator[tuple[Langfuse, str]]:
    """It, and its URL."""
    server, urls, is_up = Langfuse(), list[str](), threading.Event()

    async def until_stopped(stop: threading.Event) -> None:
        async with serve(server.app) as url:
            urls.append(url)
            is_up.set()
            await asyncio.to_thread(stop.wait)

    with Background(lambda stop: asyncio.run(until_stopped(stop))):
        assert is_up.wait(30)
        yield server, urls[0]


def posted(gateway: str, langfuse: str, *names: str) -> tuple[int, str, str]:
    """Status and words of the example."""
    environment = os.environ | {
        "LANGFUSE_HOST": langfuse,
        "LANGFUSE_PUBLIC_KEY": "pk",
        "LANGFUSE_SECRET_KEY": "sk",
        REWARDS_URL: gateway,
        REWARD_TOKEN: credential(KEY, feedback_holder(RUN_HASH)),
    }
    command = [sys.executable, str(EXAMPLE), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.strip(), done.stderr


def on(log: MemoryLog) -> list[Reward]:
    """The pieces on the log."""
    return [REWARDS.decode(record.value or b"") for record in log.records(TOPICS.name(Topic.REWARDS))]


def test_each_score_counts_once_and_a_change_revises(memory_log: MemoryLog, langfuse: tuple[Langfuse, str]) -> None:
    """By its own id, on what it is about; a second run writes nothing, and what is no number is told."""
    server, url = langfuse
    with listening(memory_log, TOPICS, FeedbackConfig(names=NAMES)) as gateway:
        names = "thumb=thumb", "stars=quality", "tone=thumb"
        assert posted(gateway, url, *names)[:2] == (0, "3 left out, 2 posted")
        first = on(memory_log)
        assert [(one.idempotency_key, one.name, one.value, one.conversation_key) for one in first] == [
            ("langfuse/s-1", "thumb", 1.0, TRACE),
            ("langfuse/s-2", "quality", 4.0, TRACE),
        ]
        assert first[0].reason == "good"
        assert posted(gateway, url, *names)[:2] == (0, "2 known, 3 left out")
        assert on(memory_log) == first
        server.reading = 1
        assert posted(gateway, url, *names)[:2] == (0, "1 known, 3 left out, 1 posted")
        assert [(one.idempotency_key, one.value) for one in on(memory_log)[2:]] == [("langfuse/s-1", 0.0)]
    assert server.authorizations == {"Basic"}


def test_a_refused_score_is_told_and_its_neighbours_count(
    memory_log: MemoryLog, langfuse: tuple[Langfuse, str]
) -> None:
    """Four stars are no thumb."""
    with listening(memory_log, TOPICS, FeedbackConfig(names=NAMES)) as gateway:
        status, words, errors = posted(gateway, langfuse[1], "thumb=thumb", "stars=thumb")
    assert (status, words) == (1, "1 left out, 1 posted, 1 refused")
    assert "s-2: " in errors and "expected a number in [0, 1]" in errors
    assert conversation_key("room 7") not in {one.conversation_key for one in on(memory_log)}
