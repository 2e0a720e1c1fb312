"""Several engines of one policy: a session keeps to one, goes on at another, and an answer's label is that engine's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.fake_engine.scripted import Reply, ScriptedEngine
from tests.producers.llm_gateway.harness import ASK, Rig, rig
from tests.serving import serve
from tests.versions import label
from tracegrad.schemas.metrics import GENERATIONS_REFUSED

pytestmark = pytest.mark.slow


class Freezable:
    """An application that answers nothing while it is frozen, like a stopped process whose port is still open."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.runs = asyncio.Event()
        self.runs.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        if scope["type"] == "http":
            await self.runs.wait()
        await self.app(scope, receive, send)


@contextlib.asynccontextmanager
async def rig_of(*engines: ScriptedEngine, **settings: Any) -> AsyncIterator[tuple[Rig, list[Freezable]]]:
    """A gateway in front of them."""
    fronts = [Freezable(engine.app) for engine in engines]
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serve(front)) for front in fronts]
        yield await stack.enter_async_context(rig(engines[0], engine_urls=tuple(urls), **settings)), fronts
        for front in fronts:
            front.runs.set()


def policies(num: int) -> tuple[ScriptedEngine, ...]:
    """Engines that serve version 0."""
    engines = tuple(ScriptedEngine(label=label(0)) for _ in range(num))
    for engine in engines:
        engine.policy = lambda prompt, draw: Reply("ok")
    return engines


async def test_a_conversation_keeps_to_its_engine_and_many_use_all() -> None:
    """The prefix cache of one engine knows a conversation's prompts."""
    async with rig_of(*policies(3)) as (r, _):
        for turn in range(2):
            for conversation in range(24):
                headers = {"x-conversation-id": str(conversation)}
                async with r.http.post(f"{r.url}/v1/chat/completions", json={"messages": ASK}, headers=headers) as got:
                    assert got.status == 200, turn
        by_key: dict[str | None, set[str]] = {}
        for call in r.calls():
            by_key.setdefault(call.conversation_key, set()).add(call.engine_id)
    assert len(by_key) == 24 and {len(engines) for engines in by_key.values()} == {1}
    assert set.union(*by_key.values()) == {"e0", "e1", "e2"}


async def test_calls_of_an_engine_that_hangs_go_on_at_another() -> None:
    """Also the one that waits there; it is used again once it answers."""
    async with rig_of(*policies(2), engine_health_s=0.1) as (r, fronts):
        await r.begin()
        await r.chat(ASK)
        first = int(r.calls()[0].engine_id[1:])
        fronts[first].runs.clear()
        async with asyncio.timeout(5):
            await r.chat(ASK)
        assert r.calls()[1].engine_id == f"e{1 - first}"
        fronts[first].runs.set()
        for _ in range(100):
            await asyncio.sleep(0.02)
            await r.chat(ASK)
            if r.calls()[-1].engine_id == f"e{first}":
                break
    assert r.calls()[-1].engine_id == f"e{first}"


async def test_an_engine_with_a_foreign_label_is_passed_over() -> None:
    """One that was restarted says `default` until weight sync has loaded; the others serve meanwhile."""
    engines = policies(2)
    async with rig_of(*engines) as (r, _):
        await r.begin()
        await r.chat(ASK)
        first = int(r.calls()[0].engine_id[1:])
        engines[first].label = "default"
        await r.chat(ASK)
        assert r.calls()[1].engine_id == f"e{1 - first}"
        assert r.gateway.parts.metrics.value(GENERATIONS_REFUSED) == 1
        engines[1 - first].label = "default"
        waiting = asyncio.create_task(r.chat(ASK))
        await asyncio.sleep(0.3)
        engines[first].label = label(0)
        await asyncio.wait_for(waiting, 5)
        assert r.calls()[2].engine_id == f"e{first}"
