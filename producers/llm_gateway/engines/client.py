"""Speaks to the engines over HTTP: pooled connections, bounded waits, no judgement of what comes back.

In: JSON bodies for vLLM's render, generate, derender and their like. Out: the answers' bytes, or what a reader makes
of them as they come. A session keeps to one engine, whose prefix cache knows it; while that one is known to be away
(health.py) the next one in the session's own order serves it. An engine that is away, loads or restarts (refused
connection, 502 to 504, a reset) is waited for until the call's deadline, the others tried in turn; then
UnavailableError. A 4xx is the fault of the request, as is a 500 that stays: EngineRefusal, for the agent. Generate is
sent again after a broken connection, unless somebody was told of the sample that is lost.
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import aiohttp
import msgspec

from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.errors import EngineRefusal, UnavailableError
from tracegrad.schemas.metrics import ENGINE_AWAY, Metrics
from tracegrad.schemas.retry import retry_async

from ..api.events import TOO_LONG
from ..config import EngineRef
from .engine import Waits
from .health import EngineHealth

_MAX_FAULTS = 3
"""A 500 so often is no accident: the engine's template or parser fails on this input."""
_FIRST_S = 0.05
_MAX_S = 1.0
_QUIET_S = math.inf
"""Hundreds of calls may wait for one engine; the metric tells of it."""
_TOO_LONG = ("context length", "max_model_len", "maximum model length")
_JSON = {"content-type": "application/json"}
T = TypeVar("T")


class EngineClient:
    """All engines of the gateway, reached within `async with`."""

    _session: aiohttp.ClientSession

    def __init__(self, engines: tuple[EngineRef, ...], *, metrics: Metrics, health_s: float) -> None:
        self.engines = engines
        self._metrics = metrics
        self._health = EngineHealth(engines, answers_within_s=health_s)

    async def __aenter__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            auto_decompress=False,
            headers={"accept-encoding": "identity"},
        )
        self._health.watch(self._session)

    async def __aexit__(self, *raised: object) -> None:
        await self._health.close()
        await self._session.close()

    async def ask(
        self,
        path: str,
        body: Any,
        waits: Waits,
        read: Callable[[EngineRef, aiohttp.ClientResponse], Awaitable[T]],
        *,
        timeout_s: float,
        avoid: Collection[str] = (),
        is_last: threading.Event | None = None,
    ) -> tuple[T, EngineRef]:
        """What `read` makes of the answer of the first engine that gives one, and which engine that was.

        Args:
            timeout_s: for one request.
            avoid: ids of engines that come last.
            is_last: once set, the error of the request that runs is that of all.
        Raises:
            EngineRefusal: a 4xx (400), or a 500 three times (502).
            UnavailableError: past the deadline.
        """
        data = msgspec.json.encode(body)
        failed: list[str] = []
        faults = 0

        async def once() -> tuple[T, EngineRef]:
            nonlocal faults
            while True:
                engine = self._next(waits, avoid, failed)
                try:
                    asked = self._ask_once(engine, path, data, timeout_s, read)
                    return await self._health.unless_lost(engine, asked), engine
                except EngineRefusal as refusal:
                    faults += 1
                    failed.append(engine.id)
                    if refusal.status == 400 or faults == _MAX_FAULTS or (is_last and is_last.is_set()):
                        raise
                except UnavailableError:
                    failed.append(engine.id)
                    self._metrics.add(ENGINE_AWAY)
                    raise

        patience_s = waits.deadline - time.monotonic()
        return await retry_async(
            once, doing=path, patience_s=patience_s, stop=is_last, first_s=_FIRST_S, max_s=_MAX_S, quiet_s=_QUIET_S
        )

    def _next(self, waits: Waits, avoid: Collection[str], failed: list[str]) -> EngineRef:
        """The session's best engine: known to be there, neither to be avoided nor one that has failed this call (once
        all have, they are tried anew), by its own order, which moves no other session's calls when an engine goes or
        comes (rendezvous hashing)."""
        if len(failed) == len(self.engines):
            failed.clear()

        def rank(engine: EngineRef) -> tuple[bool, bool, int]:
            own = zlib.crc32(f"{waits.sticky}/{engine.id}".encode())
            return not self._health.is_here(engine), engine.id in (*avoid, *failed), own

        return min(self.engines, key=rank)

    async def _ask_once(
        self,
        engine: EngineRef,
        path: str,
        data: bytes,
        timeout_s: float,
        read: Callable[[EngineRef, aiohttp.ClientResponse], Awaitable[T]],
    ) -> T:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=5.0)
        url, headers = engine.url.rstrip("/") + path, _JSON | bearer(engine.token)
        try:
            async with self._session.post(url, data=data, headers=headers, timeout=timeout) as response:
                if response.status == 200:
                    return await read(engine, response)
                answer = await response.read()
        except UnavailableError:  # the reader's own, and an OSError
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnavailableError(f"engine {engine.id}: {path} gave {type(error).__name__}") from error
        raise fault(engine, path, response.status, answer)

    async def get(self, engine: EngineRef, path: str) -> Any:
        """The JSON that one engine gives at once; None: it gives none."""
        url, timeout = engine.url.rstrip("/") + path, aiohttp.ClientTimeout(total=5.0)
        try:
            async with self._session.get(url, headers=bearer(engine.token), timeout=timeout) as response:
                return msgspec.json.decode(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
            return None


async def read_whole(_engine: EngineRef, response: aiohttp.ClientResponse) -> bytes:
    """For `ask`: the body of the answer."""
    return await response.read()


def fault(engine: EngineRef, path: str, status: int, answer: bytes) -> UnavailableError | EngineRefusal:
    """The error that an engine's answer of any status but 200 stands for."""
    if status > 500:
        return UnavailableError(f"engine {engine.id}: {path} gave status {status}")
    if status in (401, 403):
        # Of our token, not of the agent, whose request it is not: nobody's answer is graded for it.
        return UnavailableError(f"engine {engine.id}: {path} gave status {status}; see [engine] token")
    if status in (404, 405):
        # Without these routes no call can ever be served; the engine's flags are wrong, or it still starts.
        return UnavailableError(f"engine {engine.id}: {path} gave status {status}; start it with --enable-scale-out")
    said = _message(answer)
    code = TOO_LONG if any(words in said for words in _TOO_LONG) else None
    return EngineRefusal(said, status=400 if status < 500 else 502, code=code)


def _message(answer: bytes) -> str:
    """The engine's own words."""
    try:
        body = msgspec.json.decode(answer)
        error = body.get("error", body)
        return str(error.get("message") or error)[:2000]
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        return "the engine refused the request without a readable reason"
