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
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracegrad.schemas.errors import EngineRefusal, OverloadedError, RequestError, UnavailableError
from tracegrad.schemas.records.calls import CallOutcome

from ..calls import Served
from .answer import chunks, completion, error_body

__all__ = ["CallResponse", "failure", "status_of"]

_LOGGER = logging.getLogger(__name__)
_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
_TOO_LONG = ("context length", "max_model_len", "maximum model length")
_JSON = (b"content-type", b"application/json")


def status_of(error: BaseException) -> int:
    """The HTTP status of an error; from 500 on the agent is not to blame."""
    if isinstance(error, EngineRefusal):
        return 400 if error.status < 500 else 502
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, OverloadedError | UnavailableError):
        return 503
    return 410 if isinstance(error, asyncio.CancelledError) else 500


def failure(error: BaseException) -> tuple[int, bytes, dict[str, str]]:
    """(status, body, headers) of an error, in OpenAI's shape."""
    if isinstance(error, EngineRefusal):
        too_long = any(words in str(error) for words in _TOO_LONG)
        status = status_of(error)
        return status, error_body(str(error), status=status, code="context_length_exceeded" if too_long else None), {}
    if isinstance(error, RequestError):
        body = error_body(str(error), status=error.status, param=error.param, code=error.code)
        return error.status, body, _retry_after(error.status)
    if isinstance(error, OverloadedError):
        retry = {"retry-after": str(max(1, round(error.retry_after_s)))}
        return 503, error_body(str(error), status=503, code="overloaded"), retry
    if isinstance(error, UnavailableError):
        return 503, error_body(str(error), status=503, code="unavailable"), _retry_after(503)
    if isinstance(error, asyncio.CancelledError):
        return 410, error_body("the attempt ended before the call was answered", status=410), {}
    _LOGGER.error("a call failed by a fault of the gateway", exc_info=error)
    return 500, error_body("the gateway failed; its log says why", status=500), {}


def _retry_after(status: int) -> dict[str, str]:
    return {"retry-after": "1"} if status == 503 else {}


class CallResponse(Response):
    """Runs a call and sends its answer.

    Args:
        call: the call; ends with Served or with one of the errors that `failure` knows.
        settled: called exactly once, when the call has ended and its answer was sent or could not be, with what the
            call gave: the result, whose outcome says whether the client has it, or the error.
    """

    def __init__(
        self,
        call: Callable[[], Coroutine[Any, Any, Served]],
        *,
        model: str,
        is_stream: bool,
        include_usage: bool,
        keep_alive_s: float,
        settled: Callable[[Served | None, BaseException | None], None],
    ) -> None:
        super().__init__()
        self._call = call
        self._model = model
        self._is_stream = is_stream
        self._include_usage = include_usage
        self._keep_alive_s = keep_alive_s
        self._settled = settled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request."""
        gone = asyncio.create_task(_wait_until_gone(receive))
        call = asyncio.create_task(self._call())
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
        started = await self._keep_alive(call, send) if self._is_stream else False
        await asyncio.wait({call})
        if (error := _error_of(call)) is not None:
            await self._send_failure(send, error, started)
            return
        served = call.result()
        await asyncio.sleep(0)  # lets `gone` see a disconnect that has come; once the answer is sent it always ends
        is_here = not gone.done()
        await self._send(send, served, started)
        if is_here:
            served.summary.outcome = CallOutcome.DELIVERED

    def _settle(self, call: asyncio.Task[Served]) -> None:
        error = _error_of(call)
        self._settled(call.result() if error is None else None, error)

    async def _keep_alive(self, call: asyncio.Task[Served], send: Send) -> bool:
        """Comments while the call runs; whether the response has begun."""
        started = False
        while True:
            done, _ = await asyncio.wait({call}, timeout=self._keep_alive_s)
            if done:
                return started
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
                started = True
            await send({"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True})

    async def _send(self, send: Send, served: Served, started: bool) -> None:
        if not self._is_stream:
            await _send_whole(send, 200, completion(served.answer, self._model), {})
            return
        if not started:
            await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        for event in chunks(served.answer, self._model, include_usage=self._include_usage):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _send_failure(self, send: Send, error: BaseException, started: bool) -> None:
        status, body, headers = failure(error)
        if started:
            await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n"})
        else:
            await _send_whole(send, status, body, headers)


def _error_of(call: asyncio.Task[Served]) -> BaseException | None:
    return asyncio.CancelledError() if call.cancelled() else call.exception()


async def _send_whole(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    raw = [_JSON, (b"content-length", str(len(body)).encode())]
    raw += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def _wait_until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
