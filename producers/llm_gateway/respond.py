"""How a call is answered: whole, or as a stream of events, or by an error in the words of its API.

In: a call that runs, the API that asked. Out: an ASGI application. The call runs in a task of its own. A stream's
status is held back until its first text or the answer is there or `keep_alive_s` has passed, so that most failures
still have their HTTP status; after that comments keep the connection open, and a failure is an event. A client that
has gone does not stop the call, also not within its text: its record is written all the same. A request that is
cancelled (the server stops) cancels its call.
Invariant: `settled` is called exactly once, when the call has ended and its answer was sent or could not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracegrad.schemas.errors import IdentityError, OverloadedError, RequestError, UnavailableError

from ..http_request import headers_of_refusal
from .api.chat_request import ChatRequest
from .api.events import Api, Event, Failed, Problem
from .render.finish import ServedCall
from .render.live import LiveAnswer

_LOGGER = logging.getLogger(__name__)
_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


@dataclass(kw_only=True)
class CallResponse:
    """An ASGI application that runs a call and sends its answer, once."""

    call: Callable[[], Coroutine[Any, Any, ServedCall]]
    """Ends with ServedCall or with one of the errors that `problem_of` knows."""
    api: Api
    """Whose clients wait."""
    request: ChatRequest
    live: LiveAnswer
    """Where the call leaves what can be told before it has ended, and hears that nobody waits for it any more."""
    keep_alive_s: float
    left: Callable[[], None]
    """Called at most once, before `settled`: the client has gone while the call runs."""
    settled: Callable[[ServedCall | None, BaseException | None], None]
    """Called exactly once, when the call has ended and its answer was sent or could not be, with what the call gave:
    the result, whose outcome says whether the client has it, or the error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request."""
        self._writer = self.api.write(self.request)
        self._has_begun = False
        gone = asyncio.create_task(until_gone(receive))
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

    async def _answer(self, call: asyncio.Task[ServedCall], gone: asyncio.Task[None], send: Send) -> None:
        is_stream = self.request.is_stream
        call.add_done_callback(self.live.wake)
        gone.add_done_callback(self.live.wake)
        while not call.done():
            if not await self.live.has_more(self.keep_alive_s if is_stream else None):
                await self._push(send, b": keep-alive\n\n")
            if gone.done() and not self.live.is_left:
                self.live.is_left = True
                self.left()
            await self._tell(send, self.live.take_events())
        if (error := _error_of(call)) is not None:
            problem = problem_of(error)
            await self._send(send, [Failed(problem)], None if self._has_begun else problem_response(problem, self.api))
            return
        served = call.result()
        await asyncio.sleep(0)  # lets `gone` see a disconnect that has come; once the answer is sent it always ends
        is_here = not gone.done()
        whole = None if is_stream else Response(self._writer.whole(served.events), media_type="application/json")
        await self._send(send, (*self.live.take_events(), *served.events), whole)
        if is_here:
            served.delivered()

    def _settle(self, call: asyncio.Task[ServedCall]) -> None:
        error = _error_of(call)
        self.settled(call.result() if error is None else None, error)

    async def _send(self, send: Send, events: Iterable[Event], whole: Response | None) -> None:
        """Sends a whole response, else the events as the stream's rest."""
        if whole is not None:
            await send({"type": "http.response.start", "status": whole.status_code, "headers": whole.raw_headers})
            await send({"type": "http.response.body", "body": whole.body})
            return
        await self._tell(send, events)
        await send({"type": "http.response.body", "body": b""})

    async def _tell(self, send: Send, events: Iterable[Event]) -> None:
        for event in events:
            for chunk in self._writer.chunks(event):
                await self._push(send, chunk)

    async def _push(self, send: Send, chunk: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _error_of(call: asyncio.Task[ServedCall]) -> BaseException | None:
    return asyncio.CancelledError() if call.cancelled() else call.exception()


async def until_gone(receive: Receive) -> None:
    """Returns when the client has gone; the body must be here."""
    while (await receive())["type"] != "http.disconnect":
        pass


def status_of(error: BaseException) -> int:
    """The HTTP status of an error; from 500 on the agent is not to blame."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, OverloadedError | UnavailableError):
        return 503
    return 410 if isinstance(error, asyncio.CancelledError) else 500


def problem_of(error: BaseException) -> Problem:
    """What an agent is told of an error; a fault of the gateway's own is logged here."""
    status, message = status_of(error), str(error)
    match error:
        case IdentityError():
            return Problem(status=400, message=message, code=error.reason)
        case RequestError():
            return Problem(status=status, message=message, param=error.param, code=error.code)
        case OverloadedError():
            return Problem(status=status, message=message, code="overloaded")
        case UnavailableError():
            return Problem(status=status, message=message, code="unavailable")
        case asyncio.CancelledError():
            return Problem(status=status, message="the attempt ended before the call was answered")
    _LOGGER.error("a call failed by a fault of the gateway", exc_info=error)
    return Problem(status=status, message="the gateway failed; its log says why")


def problem_response(problem: Problem, api: Api) -> Response:
    """An error as that API's clients expect it."""
    headers = headers_of_refusal(problem.status)
    return Response(api.error(problem), problem.status, headers, media_type="application/json")
