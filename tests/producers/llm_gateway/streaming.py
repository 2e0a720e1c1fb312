"""A gateway whose engine streams by script, and a streamed request of any API, read as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.fake_engine.scripted import EngineFault, ScriptedEngine
from tests.fake_engine.tokenizer import toy_decoder
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, ROLLOUT, Rig, rig
from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest
from tracegrad.producers.llm_gateway.engines.engine import RenderedIds, Waits
from tracegrad.producers.llm_gateway.render.local_render import LocalRenderer
from tracegrad.producers.llm_gateway.render.local_template import LocalTemplate

PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1"
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": ASK},
    "responses": {"input": ASK},
    "messages": {"messages": ASK, "max_tokens": 200},
}


class _Renderer(LocalRenderer):
    """Parses here, as the toy's template does; renders there."""

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> RenderedIds:
        return await self._engine.ids(request, waits, to_generate=to_generate)


class Script:
    """An engine that streams, and stops before a token until it may go on."""

    def __init__(self, engine: ScriptedEngine, *, at: int) -> None:
        self.goes_on = asyncio.Event()
        self.fault: EngineFault | None = None
        """Once."""
        self._at = at
        engine.before_token = self._before

    async def _before(self, index: int) -> None:
        if index == self._at:
            await self.goes_on.wait()
            fault, self.fault = self.fault, None
            if fault is not None:
                raise fault


@contextlib.asynccontextmanager
async def live_rig(at: int = 3, **settings: Any) -> AsyncIterator[tuple[Rig, Script]]:
    """A gateway whose renderer was proved; its engine stops before the token `at`."""
    async with rig(renders_locally=False, **settings) as r:
        calls = r.gateway._calls
        calls.local = _Renderer(LocalTemplate(None, toy_decoder(), {}), calls.renderer, max_tokens=4096)
        await r.begin()
        yield r, Script(r.engine, at=at)


class Stream:
    """One streamed request, read as it comes."""

    def __init__(self, r: Rig, path: str = "chat/completions", prefix: str = PATH, **fields: Any) -> None:
        self.events: list[Any] = []
        body = {"model": "policy", "stream": True, **BODIES[path], **fields}
        self.task = asyncio.create_task(self._read(r, f"{r.url}{prefix}/{path}", body))

    async def _read(self, r: Rig, url: str, body: Any) -> int:
        async with r.http.post(url, json=body) as response:
            if response.status != 200:
                self.events.append(await response.json())
                return response.status
            async for line in response.content:
                if line.startswith(b"data: {"):
                    self.events.append(json.loads(line[6:]))
            return 200

    @property
    def text(self) -> str:
        """All that was said, in any API's words."""
        text = ""
        for event in self.events:
            if event.get("type") == "response.output_text.delta":
                text += event["delta"]
            elif event.get("type") == "content_block_delta":
                text += event["delta"].get("text", "")
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
        return text

    @property
    def is_finished(self) -> bool:
        """Whether the client was told that the answer is complete."""
        kinds = {event.get("type") for event in self.events}
        reasons = [choice["finish_reason"] for event in self.events for choice in event.get("choices", ())]
        return any(reasons) or bool(kinds & {"message_stop", "response.completed", "response.incomplete"})

    @property
    def has_failed(self) -> bool:
        """Whether it was told of an error."""
        return any("error" in event or event.get("type") == "response.failed" for event in self.events)

    async def end(self) -> int:
        """The HTTP status, once all is here."""
        return await asyncio.wait_for(self.task, 60)
