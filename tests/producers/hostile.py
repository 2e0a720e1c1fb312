"""Clients that mean harm, and the two gateways they attack, each on a real socket in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.fake_engine.scripted import Reply, ScriptedEngine
from tests.producers.keys import by_host
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, rig
from tests.producers.otlp_gateway.bodies import TRACE, request_of
from tests.producers.otlp_gateway.over_http import PROTOBUF, Gateway
from tests.serving import serve
from tests.versions import label

CHAT = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}


def _client() -> aiohttp.ClientSession:
    """Drops idle connections before the server does, which is no refusal. Shows what an agent host does."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=1), headers=by_host())


def _engine() -> ScriptedEngine:
    """Refuses what its toy template cannot render, as vLLM does: its own fault would be taken for the gateway's."""
    engine = ScriptedEngine(label=label(0))

    async def refuse(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": {"message": type(error).__name__}}, 400)

    for fault in (AttributeError, LookupError, TypeError, ValueError):
        engine.app.add_exception_handler(fault, refuse)
    return engine


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway that serves."""

    url: str
    path: str
    """Where a good request goes."""
    send: Callable[[], Awaitable[int]]
    """Sends one; its status."""
    http: aiohttp.ClientSession


@contextlib.asynccontextmanager
async def otlp(**settings: Any) -> AsyncIterator[Target]:
    """The OTLP gateway on the in-memory log."""
    body = request_of([(TRACE, 1)]).SerializeToString()
    async with serve(Gateway(**settings).app) as url, _client() as http:

        async def send() -> int:
            async with http.post(url + "/v1/traces", data=body, headers=PROTOBUF) as response:
                return response.status

        yield Target(url=url, path="/v1/traces", send=send, http=http)


@contextlib.asynccontextmanager
async def llm(**settings: Any) -> AsyncIterator[Target]:
    """The LLM gateway on the scripted engine, an attempt begun."""
    async with rig(_engine(), **settings) as r, _client() as http:
        path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
        await r.begin()

        async def send() -> int:
            r.engine.replies.append(Reply("hello"))
            async with http.post(r.url + path, json=CHAT) as response:
                return response.status

        yield Target(url=r.url, path=path, send=send, http=http)


TARGETS = {"otlp": otlp, "llm": llm}


@contextlib.asynccontextmanager
async def half_sent(target: Target, num: int, num_bytes: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Clients that announce a body, send all but its last byte, and wait."""
    host, _, port = target.url.removeprefix("http://").partition(":")
    head = f"POST {target.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/x-protobuf\r\n"
    head += f"x-api-key: {by_host()['x-api-key']}\r\n"
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(num):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(f"{head}content-length: {num_bytes + 1}\r\n\r\n".encode() + b"x" * num_bytes)
            await writer.drain()
            readers.append(reader)
        yield readers


async def percentile_99_s(target: Target, num: int) -> float:
    """Of good requests one after the other, all of which must succeed."""
    times = []
    for _ in range(num):
        began = time.perf_counter()
        assert await target.send() == 200, "a good client was refused"
        times.append(time.perf_counter() - began)
    return sorted(times)[int(num * 0.99) - 1]
