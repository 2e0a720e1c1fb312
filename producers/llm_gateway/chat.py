"""What happens to an agent's request, in order:

    door: token, body    -> identity: one caller, or quarantined   -> sessions: its attempt or captured trace
    -> api: ChatRequest  -> calls: render, splice, sample, record  -> respond: the API's wire form

In: HTTP requests of any API. Out: responses. Invariant: a call's slot is given back exactly once, when it has ended
and its answer was sent or could not be; at most `max_inflight` calls run, the next gets 503.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator

import msgspec
from starlette.requests import Request

from tracegrad.schemas.errors import OverloadedError, SessionError
from tracegrad.schemas.ids import TraceId
from tracegrad.schemas.metrics import CALLS_CAPTURED, CALLS_FAILED, CALLS_SERVED

from .api.chat_request import ChatRequest
from .api.events import Api
from .calls import CallServer, Served
from .door import Endpoint, claims_of, read_object
from .identity import Caller, judge
from .parts import Parts
from .respond import CallResponse, status_of
from .sampling import without_strict
from .sessions import Session

__all__ = ["ChatEndpoints"]


class ChatEndpoints:
    """The agents' endpoints, one for each API, with one bound on the calls of all."""

    def __init__(self, parts: Parts, calls: Callable[[], CallServer]) -> None:
        self._parts = parts
        self._calls = calls
        self.num_inflight = 0

    def endpoint(self, api: Api) -> Endpoint:
        """Serves one API."""

        async def chat(request: Request) -> CallResponse:
            caller = judge(claims_of(request), self._parts.handles.run_hash)
            session = self._parts.sessions.find(caller)
            if self.num_inflight >= self._parts.config.max_inflight:
                if session is not None:
                    session.last_fault = 503
                raise OverloadedError(f"{self.num_inflight} calls are in flight already; try again")
            with self._slot():
                asked = api.read(await read_object(request, self._parts.config.max_body_bytes))
            if not self._parts.config.allow_strict:
                asked = without_strict(asked)
            if session is None:
                caller, session = self._captured(caller)
            if session.is_closing:
                raise SessionError(f"attempt {session.key}: expected no call after /end, got one", status=410)
            return self._respond(api, session, caller, asked)

        return chat

    def _captured(self, caller: Caller) -> tuple[Caller, Session]:
        """A captured agent: its episode is its trace; a call without one is an episode of its own."""
        self._parts.metrics.add(CALLS_CAPTURED)
        if caller.trace_id is None and caller.rollout_id is None:
            caller = msgspec.structs.replace(caller, trace_id=TraceId(secrets.token_hex(16)))
        return caller, self._parts.sessions.captured(caller.rollout_id or caller.trace_id or "")

    def _respond(self, api: Api, session: Session, caller: Caller, asked: ChatRequest) -> CallResponse:
        entered = contextlib.ExitStack()
        entered.enter_context(self._slot())
        number = entered.enter_context(session.in_flight())

        def settled(served: Served | None, error: BaseException | None) -> None:
            entered.close()
            status = status_of(error) if error is not None else 200
            session.last_fault = status if status >= 500 else None
            if served is not None:
                self._parts.metrics.add(CALLS_SERVED, served.summary.outcome)
            elif error is not None:
                self._parts.metrics.add(CALLS_FAILED, type(error).__name__)

        return CallResponse(
            call=lambda: self._calls().serve(session, caller, asked, number),
            api=api,
            writer=api.write(asked),
            is_stream=asked.is_stream,
            keep_alive_s=self._parts.config.keep_alive_s,
            settled=settled,
        )

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        self.num_inflight += 1
        try:
            yield
        finally:
            self.num_inflight -= 1
