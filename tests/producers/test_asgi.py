"""The server under both gateways."""

from __future__ import annotations

import asyncio
import threading

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

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
