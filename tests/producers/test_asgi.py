"""The server under both gateways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from tests.serving import Background, free_port, until
from tracegrad.producers import asgi
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


@contextlib.contextmanager
def _served(body: bytes = b"", *, ends: bool = True, grace_s: int = 5) -> Iterator[int]:
    """The port of a server that answers every request with this body, once the request's own is here; not `ends`: and
    then goes on for ever, or of no body begins no answer."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        if body or ends:
            headers = [(b"content-length", str(len(body)).encode())] if ends else []
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body, "more_body": not ends})
        if not ends:
            await asyncio.Event().wait()

    port = free_port()

    def run(stop: threading.Event) -> None:
        serve(application, host="127.0.0.1", port=port, stop=stop, name="test", grace_s=grace_s)

    def is_up() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    with Background(run):
        until(is_up)
        yield port


def test_headers_are_bounded() -> None:
    """16 KiB in all, whether they come in one packet or drip; smaller ones pass."""
    with _served() as port:
        assert _status_of_headers(port, 15_000) == b"HTTP/1.1 200"
        for num_bytes in (17_000, 60_000, 5_000_000):
            assert _status_of_headers(port, num_bytes) in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"reset")


def _seconds_until_closed(client: socket.socket, drip: bytes = b"") -> float:
    """How long the server bears with a client that sends a byte now and then, or nothing."""
    began = time.monotonic()
    client.settimeout(0.05)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - began < 5:
            client.sendall(drip)
            with contextlib.suppress(TimeoutError):
                if not client.recv(65536):
                    break
    return time.monotonic() - began


GOOD = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("drip", [b"", b"x"], ids=["silent", "dripping"])
@pytest.mark.parametrize("before", [b"", GOOD], ids=["first", "kept"])
@pytest.mark.parametrize("part", [b"", b"GET / HTTP/1.1\r\nx-a: "], ids=["nothing", "half"])
def test_a_header_that_does_not_come_is_given_up(
    drip: bytes, before: bytes, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly it goes on; one that was answered may be silent for as long as connections are kept."""
    monkeypatch.setattr(asgi, "_HEADER_TIMEOUT_S", 0.3)
    with _served() as port, socket.create_connection(("127.0.0.1", port)) as client:
        if before:
            client.sendall(before)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(part)
        seconds = _seconds_until_closed(client, drip)
    is_idle = before and not part and not drip
    assert (seconds > 4) if is_idle else (0.2 < seconds < 2)


def test_a_body_that_drips_is_no_slow_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a time of its own."""
    monkeypatch.setattr(asgi, "_HEADER_TIMEOUT_S", 0.2)
    with _served() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 8\r\n\r\n")
        for _ in range(8):
            time.sleep(0.1)
            client.sendall(b"x")
        client.settimeout(5)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_an_answer_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held memory, and its place among the requests in flight, for as long as the client liked."""
    monkeypatch.setattr(asgi, "_UNREAD_TIMEOUT_S", 0.3)
    with _served(b"x" * 50_000_000) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(GOOD)
        time.sleep(1.0)
        received = 0
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(1_000_000):
                received += len(piece)
        assert received < 50_000_000


@pytest.mark.parametrize("body", [b"", b"a part"], ids=["waits", "streams"])
def test_a_stop_ends_what_is_under_way_and_is_no_error(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Each call that waited for an engine left a traceback of 30 lines in the log of a run that somebody stopped."""
    with contextlib.ExitStack() as clients:
        with _served(body, ends=False, grace_s=1) as port:
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.settimeout(10)
            client.sendall(GOOD)
            if body:
                until(lambda: b"a part" in client.recv(65536))
            else:
                time.sleep(0.5)
        with contextlib.suppress(ConnectionError):
            answer = client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 503 ") if not body else answer == b""
    assert "Traceback" not in caplog.text and "Exception in ASGI" not in caplog.text
