"""Serves an ASGI application on loopback within a test's event loop, and stops without the waits of a real server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

__all__ = ["free_port", "serve"]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
