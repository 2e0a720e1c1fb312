"""The LLM gateway's routes, its parts, and its process.

    POST /rollout/{r}/attempt/{a}/begin, .../end        the runner (attempts.py)
    POST [/rollout/{r}/attempt/{a}]/v1/chat/completions agents, by the APIs of `APIS` (chat.py: a request in order)
    GET  /v1/models, /health

In: requests of agents and runners. Out: answers, and `llm_calls` records acknowledged before them. What a request may
cost is bounded: body size, calls at once. `run` blocks until `stop` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.metrics import RENDERS_LOCALLY, Metrics
from tracegrad.schemas.topics import Topics

from ..asgi import serve
from .api.openai_chat import OPENAI_CHAT
from .attempts import AttemptEndpoints
from .calls import CallServer
from .chat import ChatEndpoints
from .config import LlmConfig, LlmHandles, PolicyConfig
from .door import guard
from .engines.client import EngineClient, waits_until
from .engines.lineage import KnownVersions
from .parts import Parts
from .render.engine_render import RENDER_TIMEOUT_S, EngineRenderer, Renderer
from .render.local_render import prove

__all__ = ["APIS", "Gateway", "run"]

APIS = (OPENAI_CHAT,)
"""What agents may speak; the first also words the errors of routes that belong to no API."""

_LOGGER = logging.getLogger(__name__)
_PROOF_RETRY_S = 2.0
_ROLLOUT = "/rollout/{rollout}/attempt/{attempt}"


class Gateway:
    """All parts of one gateway, alive within `application`'s lifespan."""

    def __init__(
        self,
        config: LlmConfig,
        policy: PolicyConfig,
        handles: LlmHandles,
        *,
        topics: Topics,
        log: Log,
        metrics: Metrics,
    ) -> None:
        self.parts = Parts(config, policy, handles, topics, log.writer(), metrics)
        self.versions = KnownVersions(policy.name, topics=topics, log=log, metrics=metrics)
        self.renderer: Renderer
        self._calls: CallServer
        self._chat = ChatEndpoints(self.parts, lambda: self._calls)
        self.application = Starlette(routes=self._routes(), lifespan=self._lifespan)

    def _routes(self) -> list[Route]:
        attempts = AttemptEndpoints(self.parts)
        rows = [
            ("POST", f"{_ROLLOUT}/begin", attempts.begin, APIS[0]),
            ("POST", f"{_ROLLOUT}/end", attempts.end, APIS[0]),
            ("GET", "/v1/models", self._models, APIS[0]),
            ("GET", f"{_ROLLOUT}/v1/models", self._models, APIS[0]),
            ("GET", "/health", self._health, APIS[0]),
            *(("POST", prefix + api.path, self._chat.endpoint(api), api) for api in APIS for prefix in ("", _ROLLOUT)),
        ]
        return [Route(path, guard(endpoint, api, self.parts), methods=[verb]) for verb, path, endpoint, api in rows]

    @contextlib.asynccontextmanager
    async def _lifespan(self, application: Starlette) -> AsyncIterator[None]:
        metrics = self.parts.metrics
        client = EngineClient(self.parts.handles.engines, metrics=metrics)
        self.renderer = EngineRenderer(client)
        self._calls = CallServer(self.parts, client, self.versions, lambda: self.renderer)
        following = asyncio.create_task(self.versions.follow())
        proof = asyncio.create_task(self._prefer_local(client))
        try:
            yield
        finally:
            proof.cancel()
            self.versions.close()
            await asyncio.wait({proof, following})
            await client.close()
            await asyncio.to_thread(self.parts.writer.close)
            _LOGGER.info("llm gateway stopped: %s", metrics.snapshot())

    async def _prefer_local(self, client: EngineClient) -> None:
        """Lets the gateway render once that is proved equal to the engine, which may come up long after it."""
        while self.parts.handles.renders_locally:
            folder = self.versions.folder()
            limit = await client.context_length() if folder else None
            if folder and limit:
                with contextlib.suppress(UnavailableError):
                    waits = waits_until(0, RENDER_TIMEOUT_S)
                    local = await prove(folder, self.renderer, waits, max_tokens=limit)
                    self.renderer = local or self.renderer
                    self.parts.metrics.set(RENDERS_LOCALLY, local is not None)
                    return
            await self.versions.changed(_PROOF_RETRY_S)

    async def _models(self, request: Request) -> Response:
        model = {"id": self.parts.policy.name, "object": "model", "created": 0, "owned_by": "tracegrad"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _health(self, request: Request) -> Response:
        return JSONResponse(
            {
                "status": "ok",
                "inflight": self._chat.num_inflight,
                "open_attempts": self.parts.sessions.num_open(),
                "counters": self.parts.metrics.snapshot(),
            }
        )


def run(
    config: LlmConfig,
    policy: PolicyConfig,
    handles: LlmHandles,
    *,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
) -> None:
    """Serves until `stop` is set. Raises FatalError when a restart would not help."""
    gateway = Gateway(config, policy, handles, topics=topics, log=log, metrics=metrics)
    serve(
        gateway.application,
        host=config.host,
        port=handles.port,
        stop=stop,
        name="llm gateway",
        grace_s=10,
        keep_alive_s=75,
        is_over=lambda: gateway.versions.fatal is not None,
    )
    if gateway.versions.fatal is not None:
        raise gateway.versions.fatal
