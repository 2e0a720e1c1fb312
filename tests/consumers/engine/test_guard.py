"""Who may ask an engine for what: the plug-in's guard stands before every route, and our programs show its token."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_engine.scripted import ScriptedEngine
from tests.fake_engine.weights import write_version
from tests.memory_log import MemoryLog
from tests.producers.llm_gateway.harness import rig, until
from tests.serving import ENGINE_TOKEN, Background, serve
from tests.versions import claim, label
from tracegrad.consumers.engine import vllm_plugin, weight_sync
from tracegrad.consumers.engine.vllm_plugin import Guard
from tracegrad.consumers.engine.weight_sync import WeightSyncHandles
from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import Topic, Topics

ASK = [{"role": "user", "content": "what is 12 plus 30?"}]
WITHOUT: list[dict[str, str]] = [
    {},
    {"authorization": ENGINE_TOKEN},
    {"authorization": f"Basic {ENGINE_TOKEN}"},
    {"authorization": f"Bearer {ENGINE_TOKEN[:-1]}"},
    {"authorization": f"Bearer {ENGINE_TOKEN} "},
    {"authorization": "Bearer "},
    {"x-api-key": ENGINE_TOKEN},
]
BODY = {"method": "can_load_versions", "token_ids": [1], "sampling_params": {}}
GUARDED = [
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/collective_rpc"),
    ("GET", "/weight_info"),
    ("POST", "/inference/v1/generate"),
    ("GET", "/v1/models"),
    ("GET", "/openapi.json"),
    ("POST", "/health"),
    ("OPTIONS", "/pause"),
    ("GET", "/health/../server_info"),
    ("GET", "//server_info"),
    ("GET", "/metrics/"),
]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.TOKEN, ENGINE_TOKEN)


def asked(app: Any, method: str, path: str, headers: dict[str, str]) -> int:
    """The status of the answer."""

    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
            return (await client.request(method, path, headers=headers, json=BODY)).status_code

    return asyncio.run(ask())


@pytest.mark.parametrize(("method", "path"), GUARDED, ids=lambda text: str(text))
def test_nobody_without_the_token_is_answered(method: str, path: str) -> None:
    """On no route, by no way to spell a token or a path; who has it is."""
    engine = ScriptedEngine()
    guard = Guard(engine.app)
    assert [asked(guard, method, path, headers) for headers in WITHOUT] == [401] * len(WITHOUT)
    assert engine.requests == []
    assert asked(guard, method, path, bearer(ENGINE_TOKEN)) != 401


def test_whether_it_lives_may_be_asked_by_all() -> None:
    """Supervisors and scrapers have no token, and read nothing there that anybody wrote."""
    for path in ("/health", "/metrics"):
        assert asked(Guard(ScriptedEngine().app), "GET", path, {}) != 401


def test_a_socket_is_closed_and_a_start_goes_on() -> None:
    """What is no request of HTTP: vLLM's speech over websockets, uvicorn's own start."""
    sent: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": f"{scope['type']}.answered"})

    async def send(message: Any) -> None:
        sent.append(message["type"])

    guard = Guard(app)
    asyncio.run(guard({"type": "websocket", "path": "/health", "headers": []}, None, send))
    asyncio.run(guard({"type": "lifespan"}, None, send))
    assert sent == ["websocket.close", "lifespan.answered"]


def test_a_guard_without_a_token_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not let everybody pass because somebody forgot to set it."""
    monkeypatch.delenv(vllm_plugin.TOKEN)
    with pytest.raises(ValueError, match="TRACEGRAD_ENGINE_TOKEN"):
        Guard(ScriptedEngine().app)


async def test_gateway_and_weight_sync_are_answered(tmp_path: Path) -> None:
    """A call is rendered, sampled and parsed, a version is loaded; an agent of the gateway never meets the token."""
    engine, topics, log = ScriptedEngine(label=label(0)), Topics(run=RunName("run")), MemoryLog()
    log.create_topics(topics, policies=["policy"])
    for record in (claim(1), write_version(tmp_path, 1)):
        log.writer().append(topics.name(Topic.WEIGHTS), key=b"policy", value=WEIGHTS.encode(record))
    async with serve(Guard(engine.app)) as url, rig(engine, engine_urls=(url,)) as r:
        await r.begin()
        answer = await r.chat(ASK)
        assert answer["choices"][0]["message"]["content"] and ENGINE_TOKEN not in str(answer)
        handles = WeightSyncHandles(
            policy="policy", engine_id="e0", engine_url=url, engine_token=ENGINE_TOKEN, weight_root=str(tmp_path)
        )
        with Background(lambda stop: weight_sync.run(handles, topics=topics, log=log, stop=stop, metrics=Metrics())):
            await until(lambda: engine.label == label(1), 20)


async def test_an_engine_that_wants_another_token_is_no_fault_of_an_agent() -> None:
    """It is waited for like one that is away, or rollouts would be graded for it."""
    engine = ScriptedEngine(label=label(0))
    guard = Guard(engine.app)
    guard._token = b"another"
    async with serve(guard) as url, rig(engine, engine_urls=(url,), engine_wait_s=0.2) as r:
        await r.begin()
        status, answer = await r.chat_raw(ASK)
        assert status == 503, answer
