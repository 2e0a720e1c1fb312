"""Passes a request for another model on to its upstream, and the answer back as it comes.

    chat: the caller, its body, which upstream  -> here: its slot, the upstream's key, bytes there and back  -> a record

In: a request whose body is here. Out: an ASGI application that answers it; one UpstreamCall on `llm_calls`.
Invariants: the body's bytes and the route are the agent's, the address is the settings' alone, redirects are not
followed; the agent's key goes nowhere, the upstream's to nobody else; no engine is asked. Nothing waits for Kafka: a
record that it does not take is counted, and the answer goes on. `/end` of an attempt waits for its requests and then
cancels them. Failure: 502 or 504 where the upstream gives no answer, 503 where it has too many requests; an answer that
breaks off breaks off for the agent too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from starlette.types import ASGIApp, Receive, Scope, Send
from yarl import URL

from tracegrad.schemas.errors import OverloadedError, RequestError, TracegradError
from tracegrad.schemas.ids import new_call
from tracegrad.schemas.metrics import UPSTREAM_CALLS, UPSTREAM_CALLS_UNRECORDED
from tracegrad.schemas.records.calls import LLM_CALLS, CallOutcome, UpstreamCall
from tracegrad.schemas.topics import Topic

from ..agent_request import AgentRequest
from ..config import Upstream
from ..outcomes import CallWatch
from ..parts import Parts, halved
from ..respond import problem_of, problem_response, until_gone
from .answer import AnswerFacts, AnswerReader

ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
)
"""What is passed on; the policy itself speaks those of `app.APIS`."""

_CONNECT_S = 10.0
_CANCELLED = 499
"""As proxies log a client that has gone."""


class UpstreamCalls:
    """All requests of a gateway that are passed on; reached within `async with`."""

    _http: aiohttp.ClientSession

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._num_inflight: Counter[tuple[Upstream, bool]] = Counter()
        """By upstream: of attempts, and of others."""

    async def __aenter__(self) -> None:
        # No proxy, netrc or cookie of the environment: who is asked, and with which key, the settings say.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=self._parts.timings.upstream_idle_s)
        self._http = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def __aexit__(self, *raised: object) -> None:
        await self._http.close()

    def answer(self, asked: AgentRequest, upstream: Upstream, entered: contextlib.ExitStack) -> ASGIApp:
        """The application that answers, and closes what was entered when the answer has ended.

        Raises OverloadedError, and SessionError (410) after the attempt's end.
        """
        slot = upstream, asked.session is not None
        limit = upstream.max_inflight if asked.session is not None else halved(upstream.max_inflight)
        if self._num_inflight[slot] >= limit:
            raise OverloadedError(f"{limit} requests to {upstream.name} are in flight; try again")
        self._num_inflight.update([slot])
        entered.callback(self._num_inflight.subtract, [slot])
        if asked.session is not None:
            asked.session.enter()
            entered.callback(asked.session.leave)
        return _Answering(self._parts, self._http, asked, upstream, entered.pop_all().close)


def _no_answer(upstream: Upstream, what: str, status: int) -> RequestError:
    return RequestError(f"upstream {upstream.name} {what}; try again", status=status, code="upstream_unavailable")


@dataclass
class _Answering:
    """An ASGI application that passes one request on, once."""

    parts: Parts
    client: aiohttp.ClientSession
    asked: AgentRequest
    upstream: Upstream
    leave: Callable[[], None]
    reader: AnswerReader | None = None
    """Of the upstream's answer, once the agent has its status."""
    status: int = _CANCELLED
    """As the agent saw it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request; an agent that has gone ends it, for nobody is to pay for what nobody reads."""
        started_ns, outcome = time.time_ns(), CallOutcome.CLIENT_DISCONNECTED
        gone = asyncio.create_task(until_gone(receive))
        call = asyncio.create_task(self._call(send))
        # Of no attempt: the streams are told that it lasts.
        watch = CallWatch(self.parts.outcomes, self.asked.caller) if self.asked.session is None else None
        with contextlib.ExitStack() as ended:
            # Each of them, whatever becomes of those before: the server may cancel this a second time while it waits.
            ended.callback(self.leave)
            if self.asked.is_recorded:
                ended.callback(lambda: self._record(outcome, started_ns))
            if watch is not None:
                ended.callback(watch.settle)
            try:
                await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
                if call.done():
                    outcome = await self._ended(call, scope, receive, send)
            finally:
                gone.cancel()
                call.cancel()
                await asyncio.wait({call})

    async def _call(self, send: Send) -> None:
        session = self.asked.session
        with session.cancellable() if session is not None else contextlib.nullcontext():
            await self._forward(send)

    async def _forward(self, send: Send) -> None:
        """Asks the upstream and sends what comes. Raises RequestError when nothing was sent yet."""
        asked, upstream = self.asked, self.upstream
        query = asked.http.url.query
        url = URL(upstream.base_url + asked.route.removeprefix("/v1") + (f"?{query}" * bool(query)), encoded=True)
        timeout = aiohttp.ClientTimeout(total=upstream.timeout_s, sock_connect=_CONNECT_S)
        headers = asked_with(dict(asked.http.headers), asked.route, upstream.key)
        try:
            async with self.client.post(
                url, data=asked.data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if 300 <= response.status < 400:
                    raise RequestError(
                        f"upstream {upstream.name}: expected an answer, got a redirect (status {response.status}); set "
                        "its url to where it leads",
                        status=502,
                        code="upstream_redirects",
                    )
                if not 200 <= response.status < 600:
                    raise _no_answer(upstream, f"gave status {response.status}, which is no answer's", 502)
                self.status, own = response.status, answered_with(response.headers.items())
                self.reader = reader = AnswerReader(response.headers.get("content-type", ""))
                await send({"type": "http.response.start", "status": self.status, "headers": own})
                async for piece in response.content.iter_any():
                    reader.read_piece(piece)
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except RequestError:
            raise
        except TimeoutError as error:
            raise _no_answer(upstream, "did not answer in time", 504) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _no_answer(upstream, f"gave {type(error).__name__}", 502) from error
        await send({"type": "http.response.body", "body": b""})

    async def _ended(self, call: asyncio.Task[None], scope: Scope, receive: Receive, send: Send) -> CallOutcome:
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is not None and self.reader is not None:
            return CallOutcome.UNKNOWN  # the answer breaks off, which the agent sees by its connection
        if error is not None:
            response = problem_response(problem_of(error), self.asked.api)
            self.status = response.status_code
            await response(scope, receive, send)
        return CallOutcome.DELIVERED

    def _record(self, outcome: CallOutcome, started_ns: int) -> None:
        """Hands the record to the log and does not wait."""
        asked, metrics = self.asked, self.parts.metrics
        said = self.reader.close() if self.reader is not None else AnswerFacts()
        caller = asked.caller
        metrics.add(UPSTREAM_CALLS, self.upstream.name, str(self.status))
        record = UpstreamCall(
            call_id=new_call(caller.key),
            **caller.names,
            parent_span_id=caller.parent_span_id,
            upstream=self.upstream.name,
            route=asked.route,
            model=asked.body["model"],
            answered_model=said.model,
            status=self.status,
            outcome=outcome,
            response_id=said.response_id,
            tool_call_ids=tuple(said.tool_call_ids),
            prompt_tokens=said.prompt_tokens,
            sampled_tokens=said.sampled_tokens,
            claims=caller.claims,
            started_at_ns=started_ns,
            ended_at_ns=time.time_ns(),
        )
        try:
            value = LLM_CALLS.encode(record)
            append = self.parts.append(Topic.LLM_CALLS, key=caller.record_key, value=value)
        except TracegradError as error:
            metrics.add(UPSTREAM_CALLS_UNRECORDED, type(error).__name__)
            return
        append.add_done_callback(self._appended)

    def _appended(self, append: asyncio.Future[Any]) -> None:
        if append.cancelled() or append.exception() is not None:
            why = "cancelled" if append.cancelled() else type(append.exception()).__name__
            self.parts.metrics.add(UPSTREAM_CALLS_UNRECORDED, why)


_PASSED_ON = frozenset(
    {
        *("content-type", "accept", "accept-language", "user-agent", "idempotency-key"),
        *("anthropic-version", "anthropic-beta", "openai-beta", "http-referer", "x-title"),
    }
)
"""What changes an answer or says which program asks. Not `openai-organization` and `openai-project`: they belong to the
agent's key."""
_PASSED_ON_PREFIX = "x-stainless-"
"""By which the official clients tell their version and the count of their tries."""
_KEPT_BACK = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer", "transfer-encoding"),
        *("upgrade", "content-length", "content-encoding", "set-cookie", "server", "date"),
        *("alt-svc", "strict-transport-security"),
    }
)
"""Of a connection or of a browser. The bytes are decoded on the way, so their length and coding are others."""
_ANTHROPIC = "/v1/messages"


def asked_with(headers: Mapping[str, str], route: str, key: str | None) -> dict[str, str]:
    """What an upstream is sent: no credential of the agent's and no identity of ours, whatever their header is called,
    for only what is listed here goes on. Anthropic's routes take their key otherwise than the others."""
    own = {name: value for name, value in headers.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX)}
    # What is read of an answer stands in its bytes, so they are asked for as they are.
    own["accept-encoding"] = "identity"
    if key is not None:
        own |= {"x-api-key": key} if route.startswith(_ANTHROPIC) else {"authorization": f"Bearer {key}"}
    return own


def answered_with(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """What the agent is sent, as ASGI wants it."""
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() not in _KEPT_BACK
    ]
