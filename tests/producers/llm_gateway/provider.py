"""A provider of models as OpenAI and Anthropic answer: it keeps what it was asked, and says what the test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.producers.llm_gateway.harness import Rig, rig
from tests.serving import serve
from tracegrad.producers.llm_gateway.config import Upstream

KEY = "sk-the-upstreams-own"


@dataclass
class Asked:
    """One request as the provider got it."""

    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Provider:
    """Answers every POST by `answer`; a list is a stream, piece by piece."""

    answer: bytes | list[bytes] = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    asked: list[Asked] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """A stream waits for it after its first piece."""
    delay: asyncio.Event | None = None
    """Every answer waits for it."""
    num_gone: int = 0
    """Streams whose reader went away."""

    def __post_init__(self) -> None:
        self.go_on.set()
        self.app = Starlette(routes=[Route("/{path:path}", self._serve, methods=["POST"])])

    async def _serve(self, request: Request) -> Response:
        url = request.url
        self.asked.append(Asked(url.path, url.query, dict(request.headers), await request.body()))
        if self.delay is not None:
            await self.delay.wait()
        if isinstance(self.answer, bytes):
            return Response(self.answer, self.status, self.headers)
        return StreamingResponse(self._pieces(self.answer), self.status, self.headers)

    async def _pieces(self, pieces: list[bytes]) -> AsyncIterator[bytes]:
        try:
            for number, piece in enumerate(pieces):
                if number:
                    await self.go_on.wait()
                yield piece
        except asyncio.CancelledError:
            self.num_gone += 1
            raise


def upstream(url: str, *models: str, **fields: Any) -> Upstream:
    """At that address, with the upstream's own key."""
    own: dict[str, Any] = {"name": "openai", "key": KEY, "timeout_s": 5.0, "max_inflight": 4, **fields}
    return Upstream(models=models or ("gpt-*", "claude-*", "text-embedding-3-small"), base_url=url + "/v1", **own)


@contextlib.asynccontextmanager
async def with_provider(provider: Provider, *, of: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Rig]:
    """A gateway with that provider as its upstream."""
    async with serve(provider.app) as url, rig(upstreams=(upstream(url, **(of or {})),), **settings) as r:
        yield r


def events(*bodies: Any) -> list[bytes]:
    """Server-sent events."""
    return [b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n" for body in bodies]
