"""The server under both gateways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from tests.serving import Background, free_port, until
from tracegrad.producers.asgi import serve

pytestmark = pytest.mark.slow


def test_an_application_runs_on_uvloop_where_it_is_installed() -> None:
    """As uvicorn chooses; `asyncio.run` would take its own loop."""
    loops: list[asyncio.AbstractEventLoop] = []
    stop = threading.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        loops.append(asyncio.get_running_loop())
        await receive()
        await send({"type": "lifespan.startup.complete"})
        stop.set()
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    serve(application, host="127.0.0.1", port=0, stop=stop, name="test")
    assert isinstance(loops[0], uvloop.Loop)


def _status_of_headers(port: int, num_bytes: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as client, contextlib.suppress(ConnectionError):
        client.settimeout(10)
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * num_bytes + b"\r\n\r\n")
        return client.recv(12)
    return b"reset"


def test_headers_are_bounded() -> None:
    """16 KiB in all, whether they come in one packet or drip; smaller ones pass."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    port = free_port()

    def run(stop: threading.Event) -> None:
        serve(application, host="127.0.0.1", port=port, stop=stop, name="test")

    def is_up() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    with Background(run):
        until(is_up)
        assert _status_of_headers(port, 15_000) == b"HTTP/1.1 200"
        for num_bytes in (17_000, 60_000, 5_000_000):
            assert _status_of_headers(port, num_bytes) in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"reset")
