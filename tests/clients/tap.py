"""A wire that can be cut: passes HTTP requests on and their answers back, as they come, unless it is told otherwise."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Literal

import aiohttp
from aiohttp import web

Fault = Literal["refuse", "drop"]
"""503 in place of the request; the connection ends before anything came through."""
_KEPT = ("content-type", "authorization", "x-api-key", "accept", "anthropic-version")


class Tap:
    """Made by `tapped`."""

    def __init__(self, target: str, http: aiohttp.ClientSession) -> None:
        self.url = ""
        self.faults: deque[Fault] = deque()
        """What befalls the next POST requests."""
        self.num_passed = 0
        """POST requests that came through."""
        self._target = target
        self._http = http

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        body = await request.read()
        if request.method == "POST" and self.faults:
            if self.faults.popleft() == "refuse":
                return web.Response(status=503, headers={"retry-after": "0"})
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        self.num_passed += request.method == "POST"
        headers = {name: value for name, value in request.headers.items() if name.lower() in _KEPT}
        url = self._target + request.path_qs
        async with self._http.request(request.method, url, data=body, headers=headers) as response:
            answer = web.StreamResponse(status=response.status, headers={"content-type": response.content_type})
            await answer.prepare(request)
            async for piece in response.content.iter_any():
                await answer.write(piece)
            return answer


@contextlib.asynccontextmanager
async def tapped(target: str) -> AsyncIterator[Tap]:
    """A wire to that address, in the running event loop."""
    async with aiohttp.ClientSession() as http:
        tap, application = Tap(target, http), web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", tap.pass_on)
        runner = web.AppRunner(application, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            tap.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield tap
        finally:
            await runner.cleanup()
