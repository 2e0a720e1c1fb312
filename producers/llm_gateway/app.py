"""The LLM gateway's HTTP surface and its process.

    POST /rollout/{r}/attempt/{a}/begin, .../end      the runner
    POST [/rollout/{r}/attempt/{a}]/v1/chat/completions   agents
    GET  /v1/models, /health

In: OpenAI chat requests. Out: answers, and `llm_calls` records acknowledged before them. What a request may cost is
bounded here: body size, calls at once. Errors have OpenAI's shape. `run` blocks until `stop` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tracegrad.schemas.errors import (
    IdentityError,
    OverloadedError,
    RequestError,
    SessionError,
    TracegradError,
    UnavailableError,
)
from tracegrad.schemas.ids import TraceId, parse_attempt_id, parse_rollout_id
from tracegrad.schemas.keys import episode_key, original_key
from tracegrad.schemas.log.protocol import Log, LogWriter, Record
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Topic, Topics

from ..asgi import serve
from .api.send_answer import CallResponse, failure, status_of
from .calls import CallServer, Served
from .config import LlmGatewayConfig, check
from .engines.client import EngineClient
from .engines.lineage import Lineages, LineageTail
from .identity import Caller, collect, judge
from .record import closed_record
from .render.engine_render import EngineRenderer, Renderer, waits_until
from .render.local_render import prove
from .sessions import Session, Sessions
from .splice import has_text

__all__ = ["Gateway", "run"]

_LOGGER = logging.getLogger(__name__)
_STAGE = "llm_gateway"
_PROOF_RETRY_S = 2.0
_ROLLOUT = "/rollout/{rollout}/attempt/{attempt}"


class Gateway:
    """All parts of one gateway, alive within `application`'s lifespan."""

    def __init__(self, config: LlmGatewayConfig, *, topics: Topics, log: Log) -> None:
        check(config)
        self.config = config
        self.counters: Counter[str] = Counter()
        self.sessions = Sessions(config, counters=self.counters)
        self._topics = topics
        self._log = log
        self._num_inflight = 0
        policies = tuple(policy.name for policy in config.policies)
        self.lineage = LineageTail(Lineages(policies), topics=topics, log=log)
        self._writer: LogWriter
        self._calls: CallServer
        routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("POST", f"{_ROLLOUT}/begin", self._begin),
            ("POST", f"{_ROLLOUT}/end", self._end),
            ("POST", f"{_ROLLOUT}/v1/chat/completions", self._chat),
            ("POST", "/v1/chat/completions", self._chat),
            ("GET", "/v1/models", self._models),
            ("GET", f"{_ROLLOUT}/v1/models", self._models),
            ("GET", "/health", self._health),
        ]
        self.application = Starlette(
            routes=[Route(path, self._guard(endpoint), methods=[verb]) for verb, path, endpoint in routes],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, application: Starlette) -> AsyncIterator[None]:
        self._writer = self._log.writer()
        client = EngineClient(self.config.engines, counters=self.counters)
        self.renderer: Renderer = EngineRenderer(client, timeout_s=self.config.render_timeout_s)
        self._calls = CallServer(
            self.config,
            client=client,
            renderer=lambda: self.renderer,
            lineage=self.lineage,
            writer=self._writer,
            topic=self._topics.name(Topic.LLM_CALLS),
            counters=self.counters,
            has_room=self.sessions.has_room,
        )
        self.lineage.start()
        proof = asyncio.create_task(self._prefer_local(client))
        try:
            yield
        finally:
            proof.cancel()
            await asyncio.wait({proof})
            await self.lineage.close()
            await client.close()
            await asyncio.to_thread(self._writer.close)
            _LOGGER.info("llm gateway stopped: %s", dict(self.counters | self.lineage.lineages.counters))

    async def _prefer_local(self, client: EngineClient) -> None:
        """Lets the gateway render once that is proved equal to the engine, which may come up long after it."""
        policies = self.config.policies
        while self.config.render == "auto" and len(policies) == 1:
            folder = self.lineage.lineages.folder(policies[0].name)
            limit = await client.context_length() if folder else None
            if folder and limit:
                with contextlib.suppress(UnavailableError):
                    waits = waits_until(0, self.config.render_timeout_s)
                    local = await prove(folder, self.renderer, waits, max_tokens=limit)
                    self.renderer = local or self.renderer
                    self.counters["renders_locally"] = int(local is not None)
                    return
            await self.lineage.changed(_PROOF_RETRY_S)

    def _guard(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Every error as OpenAI's clients expect it, counted."""

        async def guarded(request: Request) -> Response:
            try:
                self._authorize(request)
                return await endpoint(request)
            except IdentityError as error:
                await self._quarantine(request, error)
                answer: TracegradError = RequestError(str(error), code=error.reason)
            except TracegradError as error:
                answer = error
            status, body, headers = failure(answer)
            self.counters[f"status_{status}"] += 1
            return Response(body, status, headers, media_type="application/json")

        return guarded

    def _authorize(self, request: Request) -> None:
        token = self.config.token
        if token is None or request.url.path == "/health":
            return
        bearer = request.headers.get("authorization", "")[7:].strip()
        for given in (request.headers.get("x-tracegrad-token", ""), bearer):
            if hmac.compare_digest(given.encode(), token.encode()):
                return
        raise RequestError("expected the gateway's token as API key or in x-tracegrad-token", status=401)

    async def _quarantine(self, request: Request, error: IdentityError) -> None:
        """A dead letter by reference: the claims, no content."""
        self.counters[error.reason] += 1
        claims = collect(_path_claim(request), request.headers)
        origin = Record(topic="http", partition=0, offset=0, key=None, value=None)
        headers = dead_letter_headers(origin, stage=_STAGE, reason=error.reason, detail=str(error))
        topic = self._topics.name(Topic.DEAD_LETTERS)
        value = msgspec.json.encode(claims)
        with contextlib.suppress(UnavailableError, OverloadedError):
            future = self._writer.append(topic, key=original_key(origin), value=value, headers=headers)
            await asyncio.wait({asyncio.wrap_future(future)}, timeout=self.config.append_timeout_s)

    async def _begin(self, request: Request) -> Response:
        rollout, attempt = _path_ids(request)
        body = await self._json(request)
        policy, purpose = body.get("policy"), Purpose(str(body.get("purpose")))
        if policy not in {known.name for known in self.config.policies}:
            raise RequestError("policy: expected one of the run's policies, got another", param="policy")
        if purpose is Purpose.UNKNOWN:
            raise RequestError("purpose: expected train or validation, got another", param="purpose")
        episode = self.sessions.begin(rollout, attempt, policy=str(policy), purpose=purpose)
        return _json({"episode_id": episode})

    async def _end(self, request: Request) -> Response:
        rollout, attempt = _path_ids(request)
        session = self.sessions.get(rollout, attempt)
        async with session.end_lock:
            if session.end_answer is None:
                await session.close(self.config.end_wait_s)
                calls = session.outcomes()
                value = closed_record(rollout, attempt, {call.call_id: call.outcome for call in calls})
                await self._append(episode_key(rollout, None), value)
                session.end_answer = msgspec.json.encode({"calls": calls, "fault": session.last_fault})
                session.forget_turns()
                self.sessions.has_room(session)
                self.counters["attempts_ended"] += 1
        return Response(session.end_answer, media_type="application/json")

    async def _append(self, key: bytes, value: bytes) -> None:
        future = self._writer.append(self._topics.name(Topic.LLM_CALLS), key=key, value=value)
        acknowledged = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({acknowledged}, timeout=self.config.append_timeout_s)
        if not done:
            raise UnavailableError("the record was not acknowledged in time; try again")
        acknowledged.result()

    async def _chat(self, request: Request) -> Response:
        caller = judge(collect(_path_claim(request), request.headers), self.config.run_hash)
        session = self.sessions.find(caller)
        if self._num_inflight >= self.config.max_inflight:
            if session is not None:
                session.last_fault = 503
            raise OverloadedError(f"{self._num_inflight} calls are in flight already; try again")
        with self._slot():
            body = _checked(await self._json(request))
        if session is None:
            caller, session = self._captured(caller, body)
        if session.is_closing:
            raise SessionError(f"attempt {session.key}: expected no call after /end, got one", status=410)
        if not self.config.allow_strict:
            _drop_strict(body)
        return self._respond(session, caller, body)

    def _respond(self, session: Session, caller: Caller, body: dict[str, Any]) -> Response:
        model = str(body.get("model") or session.policy)
        entered = contextlib.ExitStack()
        entered.enter_context(self._slot())
        number = entered.enter_context(session.in_flight())

        def settled(served: Served | None, error: BaseException | None) -> None:
            entered.close()
            status = status_of(error) if error is not None else 200
            session.last_fault = status if status >= 500 else None
            if served is not None:
                self.counters[f"outcome_{served.summary.outcome}"] += 1
            elif error is not None:
                self.counters[f"failed_{type(error).__name__}"] += 1

        options = body.get("stream_options")
        return CallResponse(
            lambda: self._calls.serve(session, caller, body, number),
            model=model,
            is_stream=bool(body.get("stream")),
            include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
            keep_alive_s=self.config.keep_alive_s,
            settled=settled,
        )

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        self._num_inflight += 1
        try:
            yield
        finally:
            self._num_inflight -= 1

    def _captured(self, caller: Caller, body: dict[str, Any]) -> tuple[Caller, Session]:
        """A captured agent: its episode is its trace; a call without one is an episode of its own."""
        self.counters["captured"] += 1
        if caller.trace_id is None and caller.rollout_id is None:
            caller = msgspec.structs.replace(caller, trace_id=TraceId(secrets.token_hex(16)))
        names = [policy.name for policy in self.config.policies]
        policy = body.get("model") if body.get("model") in names else names[0]
        key = caller.rollout_id or caller.trace_id or ""
        return caller, self.sessions.captured(key, policy=str(policy))

    async def _json(self, request: Request) -> dict[str, Any]:
        """The body, an object of bounded size."""
        bound = self.config.max_body_bytes
        too_large = RequestError(f"expected a body of at most {bound} bytes, got a larger one", status=413)
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RequestError("content-encoding: expected identity, got another", status=415)
        if int(request.headers.get("content-length") or 0) > bound:
            raise too_large
        data = bytearray()
        try:
            async for part in request.stream():
                data += part
                if len(data) > bound:
                    raise too_large
        except ClientDisconnect:
            raise RequestError("the client went away while it sent the body") from None
        try:
            body = msgspec.json.decode(bytes(data) or b"{}")
            # What the log's wire cannot hold (huge numbers, lone surrogates) is refused before it costs anything.
            msgspec.msgpack.encode(body)
        except (ValueError, OverflowError, RecursionError):
            raise RequestError("expected a JSON body, got something else") from None
        if not isinstance(body, dict):
            raise RequestError("expected a JSON object, got another value")
        return body

    async def _models(self, request: Request) -> Response:
        models = [
            {"id": policy.name, "object": "model", "created": 0, "owned_by": "tracegrad"}
            for policy in self.config.policies
        ]
        return _json({"object": "list", "data": models})

    async def _health(self, request: Request) -> Response:
        return _json(
            {
                "status": "ok",
                "inflight": self._num_inflight,
                "open_attempts": self.sessions.num_open(),
                "counters": self.counters | self.lineage.lineages.counters,
            }
        )


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _path_claim(request: Request) -> tuple[str, str] | None:
    names = request.path_params
    return (names["rollout"], names["attempt"]) if "rollout" in names else None


def _path_ids(request: Request) -> tuple[Any, Any]:
    try:
        return parse_rollout_id(request.path_params["rollout"]), parse_attempt_id(request.path_params["attempt"])
    except ValueError as error:
        raise RequestError(str(error)) from None


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    """A chat request whose messages can be matched and rendered; the template judges the rest."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages: expected a list with at least one message", param="messages")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
        raise RequestError("messages: expected objects with a role", param="messages")
    if not all(map(has_text, messages)):
        raise RequestError("messages: expected tool arguments of whole characters, got half of one", param="messages")
    return body


def _drop_strict(body: dict[str, Any]) -> None:
    """A tool with `strict` would be sampled under a grammar, whose logprobs are not the policy's."""
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict):
            function.pop("strict", None)


def run(config: LlmGatewayConfig, *, topics: Topics, log: Log, stop: threading.Event) -> None:
    """Serves until `stop` is set. Raises FatalError when a restart would not help."""
    gateway = Gateway(config, topics=topics, log=log)
    serve(
        gateway.application,
        host=config.host,
        port=config.port,
        stop=stop,
        name="llm gateway",
        grace_s=10,
        keep_alive_s=75,
        is_over=lambda: gateway.lineage.fatal is not None,
    )
    if gateway.lineage.fatal is not None:
        raise gateway.lineage.fatal
