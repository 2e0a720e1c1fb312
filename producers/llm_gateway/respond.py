"""Sends a call's answer, whole or as server-sent events, and learns whether the client was still there.

The call runs in a task of its own. A stream's status is held back until the answer is there or `keep_alive_s` has
passed, so that most failures still have their HTTP status; after that comments keep the connection open, and a
failure is an event. A client that has gone does not stop the call: its record is written all the same. A request that
is cancelled (the server stops) cancels its call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracegrad.schemas.errors import OverloadedError, RequestError, UnavailableError
from tracegrad.schemas.records.calls import CallOutcome

from .api.events import Api, Failed, Problem, Writer
from .calls import Served

__all__ = ["CallResponse", "problem_of", "problem_response", "status_of"]

_LOGGER = logging.getLogger(__name__)
_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


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
    wait_s = 1 if status == 503 else None
    match error:
        case RequestError():
            return Problem(status=status, message=message, param=error.param, code=error.code, retry_after_s=wait_s)
        case OverloadedError():
            wait_s = max(1, round(error.retry_after_s))
            return Problem(status=status, message=message, code="overloaded", retry_after_s=wait_s)
        case UnavailableError():
            return Problem(status=status, message=message, code="unavailable", retry_after_s=wait_s)
        case asyncio.CancelledError():
            return Problem(status=status, message="the attempt ended before the call was answered")
    _LOGGER.error("a call failed by a fault of the gateway", exc_info=error)
    return Problem(status=status, message="the gateway failed; its log says why")


def problem_response(problem: Problem, api: Api) -> Response:
    """An error as that API's clients expect it."""
    wait_s = problem.retry_after_s
    headers = None if wait_s is None else {"retry-after": str(wait_s)}
    return Response(api.error(problem), problem.status, headers, media_type="application/json")


@dataclass(kw_only=True)
class CallResponse:
    """An ASGI application that runs a call and sends its answer."""

    call: Callable[[], Coroutine[Any, Any, Served]]
    """Ends with Served or with one of the errors that `problem_of` knows."""
    api: Api
    """Whose clients wait."""
    writer: Writer
    """Of this answer."""
    is_stream: bool
    keep_alive_s: float
    settled: Callable[[Served | None, BaseException | None], None]
    """Called exactly once, when the call has ended and its answer was sent or could not be, with what the call gave:
    the result, whose outcome says whether the client has it, or the error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request."""
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
            if call.done():
                self._settle(call)
            else:
                call.add_done_callback(self._settle)
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _answer(self, call: asyncio.Task[Served], gone: asyncio.Task[None], send: Send) -> None:
        started = await self._keep_alive(call, send) if self.is_stream else False
        await asyncio.wait({call})
        if (error := _error_of(call)) is not None:
            await self._send_problem(send, problem_of(error), started)
            return
        served = call.result()
        await asyncio.sleep(0)  # lets `gone` see a disconnect that has come; once the answer is sent it always ends
        is_here = not gone.done()
        await self._send(send, served, started)
        if is_here:
            served.summary.outcome = CallOutcome.DELIVERED

    def _settle(self, call: asyncio.Task[Served]) -> None:
        error = _error_of(call)
        self.settled(call.result() if error is None else None, error)

    async def _keep_alive(self, call: asyncio.Task[Served], send: Send) -> bool:
        """Comments while the call runs; whether the response has begun."""
        started = False
        while True:
            done, _ = await asyncio.wait({call}, timeout=self.keep_alive_s)
            if done:
                return started
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
                started = True
            await send({"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True})

    async def _send(self, send: Send, served: Served, started: bool) -> None:
        if not self.is_stream:
            await _send_whole(send, Response(self.writer.whole(served.events), media_type="application/json"))
            return
        if not started:
            await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        for event in served.events:
            for chunk in self.writer.chunks(event):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _send_problem(self, send: Send, problem: Problem, started: bool) -> None:
        if started:
            body = b"".join(self.writer.chunks(Failed(problem)))
            await send({"type": "http.response.body", "body": body})
        else:
            await _send_whole(send, problem_response(problem, self.api))


def _error_of(call: asyncio.Task[Served]) -> BaseException | None:
    return asyncio.CancelledError() if call.cancelled() else call.exception()


async def _send_whole(send: Send, response: Response) -> None:
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body})


async def _wait_until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
