"""The process: it serves until told to stop, fails in ways its supervisor understands, and logs no content."""

from __future__ import annotations

import logging
import socket
import threading
import urllib.request

import pytest

from tests.fake_engine.scripted import Reply
from tests.memory_log import MemoryLog
from tests.producers.llm_gateway.harness import TOPICS, begun, config
from tests.serving import ENGINE_TOKEN
from tests.versions import label
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


PROMPT, ANSWER = "marker-of-a-prompt-5151", "marker-of-an-answer-6262"


async def test_no_line_holds_a_prompt_an_answer_or_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Of calls that are answered, refused, unreadable, of an engine that answers under a wrong label."""
    caplog.set_level(logging.DEBUG, logger="tracegrad")
    ask = [{"role": "user", "content": PROMPT}]
    async with begun(engine_wait_s=0.3) as r:
        r.engine.replies.append(Reply(ANSWER))
        assert (await r.chat(ask))["choices"][0]["message"]["content"] == ANSWER
        statuses = [
            (await r.chat_raw(ask, model=PROMPT))[0],
            (await r.chat_raw([{"role": "tool", "content": PROMPT}]))[0],
        ]
        r.engine.label = "default"
        r.engine.replies.append(Reply(ANSWER))
        statuses.append((await r.chat_raw(ask))[0])
        r.engine.label = label(0)
        await r.end()
    assert statuses[0] == 404 and statuses[-1] == 503
    assert any("is refused" in record.getMessage() for record in caplog.records)
    told = "\n".join(logging.Formatter("%(name)s %(message)s").format(record) for record in caplog.records)
    assert not any(marker in told for marker in (PROMPT, ANSWER, ENGINE_TOKEN))
