"""Runs an ASGI application on one socket until a stop event is set.

In: an application, an address. The event loop is uvicorn's choice: uvloop where it is installed, else asyncio's.
Invariant: no signal handler is installed (the composition root owns signals); requests in flight get `grace_s` to
end; a request's header has at most 16 KiB and 10 s; a client that does not take its answer is let go. Failure:
UnavailableError when the address cannot be bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import threading
from collections.abc import Callable, Iterator

import h11
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import FatalError, UnavailableError

from .exposure import bind

_POLL_S = 0.1
_MAX_HEADER_BYTES = 16 * 1024
_HEADER_TIMEOUT_S = 10.0
"""Each connection is a file descriptor, and uvicorn waits for a header for ever."""
_UNREAD_TIMEOUT_S = 30.0
"""A client that takes nothing of its answer holds it, and its place among the requests in flight."""

logger = logging.getLogger(__name__)


class _Protocol(H11Protocol):
    """uvicorn's, with a time-out for each wait on a client; the body's is `http_request.read_body`'s."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A header is awaited."""
        super().connection_made(transport)
        self._due: dict[str, asyncio.TimerHandle] = {}
        self._await("header", _HEADER_TIMEOUT_S)

    def data_received(self, data: bytes) -> None:
        """Its first part on a connection that was kept begins the wait anew; more parts do not prolong it."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            self._await("header", _HEADER_TIMEOUT_S)
        else:
            self._has_come("header")

    def pause_writing(self) -> None:
        """More was sent than the client takes."""
        super().pause_writing()
        self._await("reading", _UNREAD_TIMEOUT_S)

    def resume_writing(self) -> None:
        """It takes it again."""
        super().resume_writing()
        self._has_come("reading")

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        super().connection_lost(exc)
        self._has_come("header")
        self._has_come("reading")

    def _await(self, what: str, timeout_s: float) -> None:
        if what not in self._due:
            self._due[what] = self.loop.call_later(timeout_s, self.transport.abort)

    def _has_come(self, what: str) -> None:
        if timer := self._due.pop(what, None):
            timer.cancel()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the process's signals as they are."""
        yield


def _bounded(app: ASGIApp) -> ASGIApp:
    """Answers 431 to a header that came whole and is too long: h11 bounds only what it waits for. And 503 to what has
    no answer yet when a stop has waited for it long enough."""

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            fields = sum(len(name) + len(value) for name, value in scope["headers"])
            if fields + len(scope["raw_path"]) + len(scope["query_string"]) > _MAX_HEADER_BYTES:
                await Response(status_code=431, headers={"connection": "close"})(scope, receive, send)
                return
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:  # uvicorn's, which would log a traceback for each
            if scope["type"] == "http":
                with contextlib.suppress(RuntimeError):  # an answer has begun, and ends with its connection
                    await Response(status_code=503, headers={"connection": "close"})(scope, receive, send)

    return bounded


def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    fd: int | None = None,
    stop: threading.Event,
    name: str,
    grace_s: int = 5,
    keep_alive_s: int = 5,
    fatal: Callable[[], FatalError | None] = lambda: None,
) -> None:
    """Serves until `stop` is set, or `fatal` gives an error, which it raises. Blocks; the log names a port that was 0.

    `fd` is a socket that listens there already, held by who started this process; None: one is bound here.
    Raises UnavailableError when the address is taken, or the application cannot start.
    """
    bound = bind(host, port) if fd is None else socket.socket(fileno=fd)
    config = uvicorn.Config(
        _bounded(app),
        # The faster parser, httptools, has no bound on what it waits for.
        http=_Protocol,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=grace_s,
    )
    server = _Server(config)

    async def until_stopped() -> None:
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        while not (stop.is_set() or fatal() or serving.done()):
            beat()
            await asyncio.sleep(_POLL_S)
        server.should_exit = True
        await serving

    gc.freeze()  # what imports made; each full collection would look through it: 60 ms in which nobody is served
    logger.info("%s: listening on http://%s:%d", name, host, bound.getsockname()[1])
    with bound, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(until_stopped())
    if (error := fatal()) is not None:
        raise error
    if not server.started and not stop.is_set():
        raise UnavailableError(f"{name}: the application did not start; the log above says why")
