"""What runs beside a test: an entry point in a thread, an ASGI application in the test's own event loop.

`serve` stops without the waits of a real server; `Background` ends what runs until an event is set, and raises what
it raised; `until` waits for what they bring about.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import psutil
import uvicorn
from starlette.types import ASGIApp

T = TypeVar("T")

ENGINE_TOKEN = "the-engines-own"
"""What an engine of the tests may ask for; their gateways show it to every engine."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_healthy(url: str) -> bool:
    """Whether a service answers."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def is_alive(pid: int, *, parent: int | None = None) -> bool:
    """Whether a process runs (a zombie does not), as a child of that parent if one is named."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and parent in (None, process.ppid())
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], T | None], timeout_s: float = 60.0, *, what: str = "it") -> T:
    """The first true value of the condition; AssertionError past the time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"expected {what} within {timeout_s:g} s")


class Background(threading.Thread):
    """An entry point in a thread; as a context manager it ends with the block, with the error that ended it."""

    def __init__(self, run: Callable[[threading.Event], object]) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._run = run

    def run(self) -> None:
        try:
            self._run(self.stop)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Background:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


class _Server(uvicorn.Server):
    """Leaves signals to the test runner and stops at once."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stopping.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        async with asyncio.timeout(2):
            while self.server_state.tasks:
                await asyncio.sleep(0.001)
        await self.lifespan.shutdown()


@contextlib.asynccontextmanager
async def serve(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Serves an ASGI application on loopback in the running event loop; yields its URL."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="error", lifespan="on", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        if task.done():
            await task
            raise RuntimeError("the server ended before it started")
        await asyncio.sleep(0.001)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.stopping.set()
        await task
