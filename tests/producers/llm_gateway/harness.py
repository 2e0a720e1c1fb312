"""A gateway on the scripted engine and the in-memory log, and the few requests that its tests send."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from starlette.types import ASGIApp

from tests.fake_engine.scripted import ScriptedEngine
from tests.memory_log import MemoryLog
from tests.producers.keys import HOST, KEY, RUN_HASH, by_host, by_runner
from tests.serving import ENGINE_TOKEN, serve
from tests.versions import label, publish
from tracegrad.producers.llm_gateway.app import Gateway
from tracegrad.producers.llm_gateway.config import EngineRef, LlmConfig, LlmHandles, PolicyConfig, Timings, Upstream
from tracegrad.producers.llm_gateway.parts import Parts
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.mac import KeyRing
from tracegrad.schemas.log.signed import SignedLog
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord, LlmCall, UpstreamCall
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.topics import Topic, Topics

TIMINGS = Timings(weights_poll_s=0.005)
ASK = [{"role": "user", "content": "what is 12 plus 30?"}]
GENERATE = "/inference/v1/generate"
ROLLOUT = RUN_HASH + "0" * 19 + "7"
ATTEMPT = "9a3c"
EPISODE = ROLLOUT + ATTEMPT
TOPICS = Topics(run=RunName("test"))
POLICY = PolicyConfig(model="none")
CALC = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]


@dataclass
class Rig:
    """A running gateway and all around it; its client has the credential of HOST, in which attempts begin."""

    url: str
    engine: ScriptedEngine
    log: MemoryLog
    gateway: Gateway
    http: aiohttp.ClientSession
    signed: SignedLog
    """As the gateway has the log."""

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """(status, decoded body); begin and end are asked by the runner, all else by HOST, unless headers say else."""
        if path.endswith(("/begin", "/end")):
            headers = by_runner() | headers
        async with self.http.post(self.url + path, json=body or {}, headers=headers) as response:
            return response.status, await response.json(content_type=None)

    async def begin(self, *, purpose: str = "train", attempt: str = ATTEMPT, **fields: Any) -> None:
        """Begins the attempt."""
        body = {"policy": "policy", "purpose": purpose, "host": HOST, **fields}
        status, answer = await self.post(f"/rollout/{ROLLOUT}/attempt/{attempt}/begin", body)
        assert (status, answer["episode_id"]) == (200, ROLLOUT + attempt), answer

    async def chat(self, messages: Any, *, attempt: str = ATTEMPT, **fields: Any) -> Any:
        """A chat completion of the attempt, which must succeed."""
        status, answer = await self.chat_raw(messages, attempt=attempt, **fields)
        assert status == 200, answer
        return answer

    async def chat_raw(self, messages: Any, *, attempt: str = ATTEMPT, **fields: Any) -> tuple[int, Any]:
        """(status, body) of a chat completion of the attempt."""
        body = {"model": "policy", "messages": messages, **fields}
        return await self.post(f"/rollout/{ROLLOUT}/attempt/{attempt}/v1/chat/completions", body)

    async def end(self, *, attempt: str = ATTEMPT) -> Any:
        """Ends the attempt; its calls."""
        status, answer = await self.post(f"/rollout/{ROLLOUT}/attempt/{attempt}/end")
        assert status == 200, answer
        return answer["calls"]

    def records(self) -> list[LlmCall]:
        """All of `llm_calls`."""
        return [LLM_CALLS.decode(record.value) for record in self.log.records(TOPICS.name(Topic.LLM_CALLS))]

    def passed_on(self) -> list[UpstreamCall]:
        """The records of what other models answered."""
        return [record for record in self.records() if isinstance(record, UpstreamCall)]

    def calls(self) -> list[CallRecord]:
        """The call records, by their start."""
        calls = [record for record in self.records() if isinstance(record, CallRecord)]
        return sorted(calls, key=lambda call: call.started_at_ns)

    def asked(self, path: str) -> list[Any]:
        """Bodies that the engine got on a path."""
        return [body for asked, body in self.engine.requests if asked == path]

    def publish(self, version: int, epoch: int = 1) -> None:
        """Appends a manifest to `weights`."""
        publish(self.signed, TOPICS, version, epoch)


def config(
    *urls: str,
    port: int = 0,
    renders_locally: bool = True,
    policy: PolicyConfig = POLICY,
    upstreams: tuple[Upstream, ...] = (),
    trains_captured: bool = False,
    samples_as_asked: bool = False,
    **settings: Any,
) -> tuple[LlmConfig, PolicyConfig, LlmHandles]:
    """Settings with waits that a test can afford."""
    waits = {"engine_wait_s": 5.0, "end_wait_s": 2.0, "keep_alive_s": 0.05, "lineage_lag_s": 0.05}
    engines = tuple(EngineRef(id=f"e{i}", url=url, token=ENGINE_TOKEN) for i, url in enumerate(urls))
    handles = LlmHandles(
        port=port,
        run_hash=RUN_HASH,
        key=KEY,
        engines=engines,
        renders_locally=renders_locally,
        upstreams=upstreams,
        trains_captured=trains_captured,
        samples_as_asked=samples_as_asked,
    )
    return LlmConfig(**(waits | settings)), policy, handles


@contextlib.asynccontextmanager
async def rig(
    engine: ScriptedEngine | None = None,
    *,
    engine_url: str = "",
    engine_urls: tuple[str, ...] = (),
    folder: str = "/nowhere",
    timings: Timings = TIMINGS,
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """A gateway in front of a scripted engine that serves version 0 of epoch 1; `around` puts more in front of it."""
    engine = engine or ScriptedEngine(label=label(0))
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    signed = SignedLog(log, KeyRing(RUN_HASH, {RUN_HASH: KEY}), topics=TOPICS, metrics=Metrics())
    publish(signed, TOPICS, 0, claims=True, uri=folder)
    async with contextlib.AsyncExitStack() as stack:
        urls = engine_urls or (engine_url or await stack.enter_async_context(serve(engine.app)),)
        gateway = Gateway(Parts(*config(*urls, **settings), TOPICS, signed, Metrics(), timings))
        gateway_url = await stack.enter_async_context(serve(around(gateway.application)))
        # Idle connections are dropped before the server does.
        connector = aiohttp.TCPConnector(keepalive_timeout=1)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, headers=by_host()))
        yield Rig(gateway_url, engine, log, gateway, http, signed)


@contextlib.asynccontextmanager
async def begun(engine: ScriptedEngine | None = None, **settings: Any) -> AsyncIterator[Rig]:
    """As `rig`; the attempt has begun."""
    async with rig(engine, **settings) as r:
        await r.begin()
        yield r


async def until(condition: Any, timeout_s: float = 5.0) -> None:
    """Waits for a condition that other tasks bring about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about in time"
        await asyncio.sleep(0.002)


def full_prompt(call: CallRecord, calls: list[CallRecord]) -> list[int]:
    """The prompt's ids, put together from the parents."""
    prefix: list[int] = []
    if call.parent_call_id is not None:
        parent = next(other for other in calls if other.call_id == call.parent_call_id)
        prefix = full_prompt(parent, calls) + ids_from_bytes(parent.sampled_ids).tolist()
    assert len(prefix) >= call.shared_tokens
    return [*prefix[: call.shared_tokens], *np.frombuffer(call.suffix_ids, "<i4").tolist()]
