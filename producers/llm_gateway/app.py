"""The LLM gateway's routes, its guard, and its process.

    POST /rollout/{r}/attempt/{a}/begin {policy, purpose, host}       the runner: an attempt begins, in a command or
                                                                      in an agent host
    POST /rollout/{r}/attempt/{a}/end                                 it ends, with the list of its calls
    POST [/rollout/{r}/attempt/{a}]/v1/chat/completions    agents, by the APIs of `APIS` (chat.py: a request in order)
    POST [/rollout/{r}/attempt/{a}]/v1/messages/count_tokens          what a prompt of Anthropic Messages would cost
    POST /api/rollouts/{r}/attempt/{a}/events              agents of Agent Lightning 1.0 (agent_events.py); their calls:
    POST /proxy/rollout/{r}/attempt/{a}/mode/{train|val}/openai/v1/chat/completions    likewise by all of `APIS`
    POST [/rollout/{r}/attempt/{a}]/v1/...       what `upstream/` passes on: these and more routes, for other models
    GET  /v1/models, /health

In: requests of agents and runners. Out: answers, and `llm_calls` records acknowledged before them: `calls_closed`
before that of `/end`. Begin and end may be asked again and then change nothing. What a request may cost is bounded:
body size, calls at once. A credential (schemas/credentials.py) proves who asks: the routes of the runner want its own,
a rollout of this run that of its agent. Failure: the errors of the room, worded by the API that was asked; claims that
are not proved are refused (403) and counted; claims that disagree are quarantined as a dead letter that holds no
content. `run` blocks until `stop` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp

from tracegrad.schemas.credentials import Holder, runner_holder
from tracegrad.schemas.errors import (
    IdentityError,
    OverloadedError,
    ProofError,
    RecordError,
    RequestError,
    TracegradError,
    UnavailableError,
)
from tracegrad.schemas.keys import episode_key, original_key
from tracegrad.schemas.log.protocol import Log, Record
from tracegrad.schemas.metrics import (
    DEAD_LETTERS,
    RENDERS_LOCALLY,
    REQUESTS_QUARANTINED,
    REQUESTS_REFUSED,
    REQUESTS_UNPROVED,
    Metrics,
)
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import LLM_CALLS, CallOutcome, CallsClosed, Purpose
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Topic, Topics

from ..asgi import serve
from ..http_request import api_keys_of, holder_of, path_ids, read_object
from .agent_events import EVENTS_PATH, AgentEvents
from .api.events import Api
from .api.messages.write import COUNT_TOKENS, MESSAGES
from .api.openai_chat import OPENAI_CHAT
from .api.responses.write import RESPONSES
from .calls import CallServer
from .chat import ChatEndpoints
from .config import GRACE_S, LlmConfig, LlmHandles, PolicyConfig
from .engines.client import EngineClient
from .engines.engine import RENDER_TIMEOUT_S, waits_until
from .engines.generate import KnownVersions
from .engines.vllm import VllmEngine
from .identity import claims_of
from .models import Models
from .parts import Parts
from .render.local_render import prove
from .respond import problem_of, problem_response
from .upstream.pass_on import ROUTES, UpstreamCalls

APIS = (OPENAI_CHAT, RESPONSES, MESSAGES)
"""What agents may speak; the first also words the errors of routes that belong to no API."""

_LOGGER = logging.getLogger(__name__)
_LIGHTNING = "/proxy/rollout/{rollout}/attempt/{attempt}/mode"
"""What the mode says is not asked: the runner has told the attempt's purpose."""


class Gateway:
    """All parts of one gateway, alive within `application`'s lifespan."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.versions = KnownVersions(
            parts.policy.name,
            topics=parts.topics,
            log=parts.log,
            metrics=parts.metrics,
            poll_s=parts.timings.weights_poll_s,
        )
        self._client = EngineClient(parts.handles.engines, metrics=parts.metrics, health_s=parts.config.engine_health_s)
        self._engine = VllmEngine(self._client)
        self._calls = CallServer(parts, self._engine, self.versions)
        self._upstreams = UpstreamCalls(parts)
        self._chat = ChatEndpoints(parts, self._calls, self._upstreams, APIS[0])
        self._events = AgentEvents(parts)
        # No Starlette around it: what its layers would catch, `_route` words, and the server answers the rest by 500.
        self.application = Router(routes=self._routes(), lifespan=self._lifespan)

    def _routes(self) -> list[BaseRoute]:
        chats = [self._route("POST", api.path, functools.partial(self._chat.chat, api=api), api) for api in APIS]
        count = functools.partial(self._chat.count, api=COUNT_TOKENS)
        counts = self._route("POST", COUNT_TOKENS.path, count, COUNT_TOKENS)
        spoken = {COUNT_TOKENS.path, *(api.path for api in APIS)}
        others = [
            self._route("POST", route, functools.partial(self._chat.pass_on, route=route))
            for route in ROUTES
            if route not in spoken
        ]
        agents = [self._route("GET", "/v1/models", self._models), *chats, counts, *others]
        runners = [self._route("POST", "/begin", self._begin), self._route("POST", "/end", self._end)]
        # What Agent Lightning's ProxyLLM makes of an attempt's own address.
        proxied = Mount("/rollout/{name}/attempt/{number}", routes=agents)
        rollout = Mount("/rollout/{rollout}/attempt/{attempt}", routes=[*agents, *runners, proxied])
        lightning: list[BaseRoute] = [Mount(f"{_LIGHTNING}/{mode}/openai", routes=agents) for mode in ("train", "val")]
        lightning.append(self._route("POST", EVENTS_PATH, self._events.post))
        return [*agents, rollout, *lightning, self._route("GET", "/health", self._health)]

    def _route(
        self, verb: str, path: str, endpoint: Callable[[Request], Awaitable[ASGIApp]], api: Api = APIS[0]
    ) -> Route:
        """The endpoint behind the token, its errors counted and in the API's words."""

        async def guarded(request: Request) -> ASGIApp:
            try:
                self._authorize(request)
                return await endpoint(request)
            except TracegradError as error:
                if isinstance(error, ProofError):
                    self.parts.metrics.add(REQUESTS_UNPROVED, error.reason)
                if isinstance(error, IdentityError):
                    self.parts.metrics.add(REQUESTS_QUARANTINED, error.reason)
                    await self._quarantine(request, error)
                problem = problem_of(error)
                self.parts.metrics.add(REQUESTS_REFUSED, str(problem.status))
                return problem_response(problem, api)

        return Route(path, guarded, methods=[verb])

    def _authorize(self, request: Request) -> None:
        token, headers = self.parts.config.token, request.headers
        if token is None or request.url.path == "/health" or holder_of(headers, self.parts.handles.key) is not None:
            return
        given = (headers.get("x-tracegrad-token", ""), *api_keys_of(headers))
        if not any(hmac.compare_digest(one.encode(), token.encode()) for one in given):
            raise RequestError("expected the gateway's token as API key or in x-tracegrad-token", status=401)

    def _check_runner(self, request: Request) -> None:
        handles = self.parts.handles
        if holder_of(request.headers, handles.key) != runner_holder(handles.run_hash):
            raise ProofError(
                "expected the credential of this run's runner, got another or none; only the runner begins and ends "
                "attempts",
                reason=Reason.NOT_THE_RUNNER,
            )

    async def _quarantine(self, request: Request, error: IdentityError) -> None:
        """A dead letter by reference: the claims, no content."""
        origin = Record(topic="http", partition=0, offset=0, key=None, value=None)
        headers = dead_letter_headers(origin, stage="llm_gateway", reason=error.reason, detail=str(error))
        value = msgspec.json.encode(claims_of(request))
        with contextlib.suppress(UnavailableError, OverloadedError, RecordError):
            letter = self.parts.append(Topic.DEAD_LETTERS, key=original_key(origin), value=value, headers=headers)
            await self.parts.acknowledged(letter)
            self.parts.metrics.add(DEAD_LETTERS, error.reason)

    async def _begin(self, request: Request) -> Response:
        self._check_runner(request)
        rollout, attempt = path_ids(request)
        with self.parts.budgets[True].share() as share:
            body = await read_object(request, self.parts.config.max_body_bytes, share)
        purpose = Purpose(str(body.get("purpose")))
        if body.get("policy") != self.parts.policy.name:
            raise RequestError("policy: expected the run's policy, got another", param="policy")
        if purpose is Purpose.UNKNOWN:
            raise RequestError("purpose: expected train or validation, got another", param="purpose")
        # Compared with what a credential proves; any other text is nobody's.
        host = Holder(str(body["host"])) if body.get("host") else None
        episode = self.parts.sessions.begin(rollout, attempt, purpose, host)
        return JSONResponse({"episode_id": episode, "gateway": self.parts.process})

    async def _end(self, request: Request) -> Response:
        self._check_runner(request)
        rollout, attempt = path_ids(request)
        session = self.parts.sessions.get(rollout, attempt)
        async with session.end_lock:
            if session.end_answer is None:
                await session.close(self.parts.config.end_wait_s)
                await self._events.settle(session)
                outcomes: dict[str, CallOutcome] = {id_: answer.outcome for id_, answer in session.answers.items()}
                closed = LLM_CALLS.encode(CallsClosed(rollout_id=rollout, attempt_id=attempt, outcomes=outcomes))
                append = self.parts.append(Topic.LLM_CALLS, key=episode_key(rollout, None), value=closed)
                await self.parts.acknowledged(append)
                session.end()
                self.parts.sessions.has_room(session)
        return Response(session.end_answer, media_type="application/json")

    async def _models(self, request: Request) -> Response:
        names = Models(self.parts.policy, self.parts.handles.upstreams).listed()
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "tracegrad"} for name in names]
        return JSONResponse({"object": "list", "data": models})

    async def _health(self, request: Request) -> Response:
        counters = self.parts.metrics.snapshot()
        told = {"status": "ok", "gateway": self.parts.process, "inflight": self._chat.num_inflight}
        return JSONResponse({**told, "counters": counters})

    @contextlib.asynccontextmanager
    async def _lifespan(self, application: object) -> AsyncIterator[None]:
        async with self._client, self._upstreams:
            following = asyncio.create_task(self.versions.follow())
            proof = asyncio.create_task(self._prefer_local())
            telling = asyncio.create_task(self.parts.outcomes.write())
            try:
                yield
            finally:
                proof.cancel()
                telling.cancel()
                self.versions.stop.set()
                await asyncio.wait({proof, following, telling})
                await self.parts.outcomes.close(self.parts.timings.last_words_s)
                await asyncio.to_thread(self.parts.writer.close)
                _LOGGER.info("llm gateway stopped: %s", self.parts.metrics.snapshot())

    async def _prefer_local(self) -> None:
        """Lets the gateway render once that is proved equal to the engine, which may come up long after it."""
        while self.parts.handles.renders_locally:
            folder = self.versions.folder(self.parts.handles.weight_root)
            limit = await self._engine.context_length() if folder else None
            if folder and limit:
                with contextlib.suppress(UnavailableError):
                    waits = waits_until("", RENDER_TIMEOUT_S)
                    self._calls.local = await prove(folder, self._engine, waits, max_tokens=limit)
                    self.parts.metrics.set(RENDERS_LOCALLY, self._calls.local is not None)
                    return
            await self.versions.changed(self.parts.timings.proof_retry_s)


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
    gateway = Gateway(Parts(config, policy, handles, topics, log, metrics))
    serve(
        gateway.application,
        host=config.host,
        port=handles.port,
        fd=handles.fd,
        stop=stop,
        name="llm gateway",
        grace_s=GRACE_S,
        keep_alive_s=75,
        fatal=lambda: gateway.versions.fatal,
    )
