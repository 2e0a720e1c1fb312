"""What happens to an agent's request, in order:

    app: token, body     -> identity: one caller, or refused       -> sessions: its attempt or captured trace
    -> api: ChatRequest  -> calls: render, splice, sample, record  -> here: the API's wire form, whole or as events

In: HTTP requests of any API. Out: responses. The call runs in a task of its own. A stream's status is held back until
the answer is there or `keep_alive_s` has passed, so that most failures still have their HTTP status; after that
comments keep the connection open, and a failure is an event. A client that has gone does not stop the call: its record
is written all the same. A request that is cancelled (the server stops) cancels its call.
Invariant: a call's slot is given back exactly once, when it has ended and its answer was sent or could not be; at most
`max_inflight` calls of attempts run, the next gets 503. Calls of no attempt have slots and bytes of their own: whoever
floods with them, to be refused and tried again, takes none from an attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tracegrad.schemas.errors import IdentityError, OverloadedError, RequestError, UnavailableError
from tracegrad.schemas.ids import CallId, TraceId, key_in, split_episode_id
from tracegrad.schemas.metrics import CALLS_CAPTURED, CALLS_FAILED, CALLS_JOINED, CALLS_SERVED
from tracegrad.schemas.records.calls import CallOutcome

from ..http_request import UNREAD, holder_of, read_object, retry_after_s
from .api.chat_request import ChatRequest, Message, check_recordable
from .api.events import Api, Event, Failed, Problem, Recall
from .calls import CallServer, Parts, Served, halved
from .identity import Caller, claims_of, conversation_of, judge, scope_of
from .leaves import Leaf, Said
from .models import check_model
from .sampling import without_strict
from .sessions import Session
from .splice import SpliceHistory, last_said, splice_context

__all__ = ["CallResponse", "ChatEndpoints", "problem_of", "problem_response"]

_LOGGER = logging.getLogger(__name__)
_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class ChatEndpoints:
    """The agents' endpoints, one for each API, with one bound on the calls of all."""

    def __init__(self, parts: Parts, calls: CallServer) -> None:
        self._parts = parts
        self._calls = calls
        self._num_inflight = {True: 0, False: 0}
        """Of attempts, and of others."""

    async def chat(self, http: Request, api: Api) -> CallResponse:
        """Serves a request of one API."""
        parts, config = self._parts, self._parts.config
        caller, session = self._caller(http)
        if session is not None:
            # Who names its rollout alone is in one of its attempts all the same, and so is its record.
            caller = msgspec.structs.replace(caller, attempt_id=split_episode_id(session.key)[1])
        with contextlib.ExitStack() as entered:
            try:
                # A slot only for a body that is here, or clients that never send theirs would hold them all.
                share = entered.enter_context(parts.budgets[session is not None].share())
                body = await read_object(http, config.max_body_bytes, share)
                self._enter(session is not None)
            except OverloadedError:
                if session is not None:
                    session.last_fault = 503
                raise
            entered.callback(self._leave, session is not None)
            if session is not None:
                # From here on it is the agent's doing what becomes of the request; a body that broke off is not.
                session.last_fault = None
            scope = scope_of(http)
            request = api.read_on(body, self._recall(caller, session, scope)) if api.read_on else api.read(body)
            check_recordable(request)
            check_model(request.model, parts.policy)
            if not config.allow_strict:
                request = without_strict(request)
            leaf = None
            if session is None:
                parts.metrics.add(CALLS_CAPTURED)
                caller, session, leaf = self._captured(caller, scope, request)
            session.enter()
            entered.callback(session.leave)
            leave = entered.pop_all().close
        return CallResponse(
            call=functools.partial(self._calls.serve, session, caller, request),
            api=api,
            request=request,
            keep_alive_s=config.keep_alive_s,
            settled=functools.partial(self._settle, session, leave, leaf),
        )

    def _recall(self, caller: Caller, session: Session | None, scope: bytes) -> Recall:
        """What the caller may go on with: answers of its attempt, or of a captured conversation that is its own."""

        def recall(call_id: CallId) -> tuple[Message, ...] | None:
            found = session or self._parts.sessions.known(caller.key if _is_named(caller) else key_in(call_id) or "")
            is_own = found is not None and found.scope in (None, scope)
            return found.conversations.find(call_id) if found is not None and is_own else None

        return recall

    def _captured(self, caller: Caller, scope: bytes, request: ChatRequest) -> tuple[Caller, Session, Leaf | None]:
        """The session of a captured agent's call: of what it names, else of the only conversation that its messages
        continue, which is thereby taken, else of its own."""
        sessions = self._parts.sessions
        if request.continues is not None and not _is_named(caller):
            # The answer's id says more than the trace, of which a client may begin one for each request.
            caller = msgspec.structs.replace(caller, conversation_key=key_in(request.continues))
        if caller.key:
            return caller, sessions.captured(caller.key), None
        said = last_said(splice_context(request), request.messages)
        leaf = sessions.leaves.take(Said(scope, *said)) if said else None
        if leaf is not None:
            self._parts.metrics.add(CALLS_JOINED)
            caller = msgspec.structs.replace(caller, conversation_key=leaf.key)
        else:
            caller = msgspec.structs.replace(caller, trace_id=TraceId(secrets.token_hex(16)))
        session = sessions.captured(caller.key)
        session.scope = scope
        return caller, session, leaf

    async def count(self, http: Request, api: Api) -> Response:
        """How many tokens the prompt of a request would have; nothing is sampled or recorded."""
        parts = self._parts
        caller, session = self._caller(http)
        with contextlib.ExitStack() as entered:
            share = entered.enter_context(parts.budgets[session is not None].share())
            body = await read_object(http, parts.config.max_body_bytes, share)
            self._enter(session is not None)
            entered.callback(self._leave, session is not None)
            request = api.read(body)
            check_model(request.model, parts.policy)
            known = session or parts.sessions.known(caller.key)
            history = known.history if known is not None else SpliceHistory()
            num_tokens = await self._calls.count(caller.key, history, request)
        return JSONResponse({"input_tokens": num_tokens})

    def _caller(self, http: Request) -> tuple[Caller, Session | None]:
        """Who asks, and in which attempt; None for a captured agent."""
        parts = self._parts
        holder = holder_of(http, parts.handles.key)
        caller = judge(claims_of(http), holder, parts.handles.run_hash, conversation_of(http.headers))
        return caller, parts.sessions.find(caller)

    def _settle(
        self,
        session: Session,
        leave: Callable[[], None],
        leaf: Leaf | None,
        served: Served | None,
        error: BaseException | None,
    ) -> None:
        leave()
        if leaf is not None and (served is None or served.answer.outcome is not CallOutcome.DELIVERED):
            # Nobody has the answer: the client asks the same again.
            self._parts.sessions.leaves.add(leaf)
        # Any other 5xx is the answer to what this request holds: an agent that finds one would be tried again for it.
        session.last_fault = 503 if error is not None and _status_of(error) == 503 else None
        if served is not None:
            self._parts.metrics.add(CALLS_SERVED, served.answer.outcome)
        elif error is not None:
            self._parts.metrics.add(CALLS_FAILED, type(error).__name__)

    @property
    def num_inflight(self) -> int:
        """Calls that run."""
        return sum(self._num_inflight.values())

    def _enter(self, is_attempts: bool) -> None:
        num, limit = self._num_inflight[is_attempts], self._parts.config.max_inflight
        if num >= (limit if is_attempts else halved(limit)):
            raise OverloadedError(f"{num} calls are in flight already; try again")
        self._num_inflight[is_attempts] += 1

    def _leave(self, is_attempts: bool) -> None:
        self._num_inflight[is_attempts] -= 1


def _is_named(caller: Caller) -> bool:
    """Whether a captured agent says which conversation it means."""
    return caller.rollout_id is not None or caller.conversation_key is not None


@dataclass(kw_only=True)
class CallResponse:
    """An ASGI application that runs a call and sends its answer, once."""

    call: Callable[[], Coroutine[Any, Any, Served]]
    """Ends with Served or with one of the errors that `problem_of` knows."""
    api: Api
    """Whose clients wait."""
    request: ChatRequest
    keep_alive_s: float
    settled: Callable[[Served | None, BaseException | None], None]
    """Called exactly once, when the call has ended and its answer was sent or could not be, with what the call gave:
    the result, whose outcome says whether the client has it, or the error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request."""
        self._writer = self.api.write(self.request)
        self._has_begun = False
        gone = asyncio.create_task(_wait_until_gone(receive))
        call = asyncio.create_task(self.call())
        try:
            await self._answer(call, gone, send)
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            gone.cancel()
            # Whatever became of the request, and not before the call has ended: its slot is what `/end` waits for.
            call.add_done_callback(self._settle)
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _answer(self, call: asyncio.Task[Served], gone: asyncio.Task[None], send: Send) -> None:
        is_stream = self.request.is_stream
        while not (await asyncio.wait({call}, timeout=self.keep_alive_s if is_stream else None))[0]:
            await self._push(send, b": keep-alive\n\n")
        if (error := _error_of(call)) is not None:
            problem = problem_of(error)
            await self._send(send, [Failed(problem)], None if self._has_begun else problem_response(problem, self.api))
            return
        served = call.result()
        await asyncio.sleep(0)  # lets `gone` see a disconnect that has come; once the answer is sent it always ends
        is_here = not gone.done()
        whole = None if is_stream else Response(self._writer.whole(served.events), media_type="application/json")
        await self._send(send, served.events, whole)
        if is_here:
            served.answer.outcome = CallOutcome.DELIVERED

    def _settle(self, call: asyncio.Task[Served]) -> None:
        error = _error_of(call)
        self.settled(call.result() if error is None else None, error)

    async def _send(self, send: Send, events: Iterable[Event], whole: Response | None) -> None:
        """Sends a whole response, else the events as the stream's rest."""
        if whole is not None:
            await send({"type": "http.response.start", "status": whole.status_code, "headers": whole.raw_headers})
            await send({"type": "http.response.body", "body": whole.body})
            return
        for event in events:
            for chunk in self._writer.chunks(event):
                await self._push(send, chunk)
        await send({"type": "http.response.body", "body": b""})

    async def _push(self, send: Send, chunk: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _error_of(call: asyncio.Task[Served]) -> BaseException | None:
    return asyncio.CancelledError() if call.cancelled() else call.exception()


async def _wait_until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _status_of(error: BaseException) -> int:
    """The HTTP status of an error; from 500 on the agent is not to blame."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, OverloadedError | UnavailableError):
        return 503
    return 410 if isinstance(error, asyncio.CancelledError) else 500


def problem_of(error: BaseException) -> Problem:
    """What an agent is told of an error; a fault of the gateway's own is logged here."""
    status, message = _status_of(error), str(error)
    wait_s = retry_after_s() if status == 503 else None
    match error:
        case IdentityError():
            return Problem(status=400, message=message, code=error.reason)
        case RequestError():
            return Problem(status=status, message=message, param=error.param, code=error.code, retry_after_s=wait_s)
        case OverloadedError():
            return Problem(status=status, message=message, code="overloaded", retry_after_s=wait_s)
        case UnavailableError():
            return Problem(status=status, message=message, code="unavailable", retry_after_s=wait_s)
        case asyncio.CancelledError():
            return Problem(status=status, message="the attempt ended before the call was answered")
    _LOGGER.error("a call failed by a fault of the gateway", exc_info=error)
    return Problem(status=status, message="the gateway failed; its log says why")


def problem_response(problem: Problem, api: Api) -> Response:
    """An error as that API's clients expect it."""
    headers = {} if problem.retry_after_s is None else {"retry-after": str(problem.retry_after_s)}
    if problem.status in UNREAD:
        headers["connection"] = "close"
    return Response(api.error(problem), problem.status, headers, media_type="application/json")
