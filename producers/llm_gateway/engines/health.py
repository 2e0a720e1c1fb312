"""Which of several engines answer, so that calls go to those and leave one that hangs.

In: `/health` of each engine, asked again and again. Out: whether an engine is here, and an end to what is asked of one
that is lost. A single engine is not watched: there is no other to go to, and its calls wait for it anyway.
Invariant: an engine is lost after `_LOST_AFTER` unanswered questions in a row (a vLLM that loads weights still answers)
and here again with its first answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp

from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.errors import UnavailableError

from ..config import EngineRef

T = TypeVar("T")
_LOST_AFTER = 2
_POLLS = 5
"""Questions within the time that one may take."""


class EngineHealth:
    """Watches engines in the event loop of the session that `watch` is given."""

    def __init__(self, engines: tuple[EngineRef, ...], *, answers_within_s: float) -> None:
        self._engines = engines if len(engines) > 1 else ()
        self._timeout_s = answers_within_s
        self._lost = {engine.id: asyncio.Event() for engine in self._engines}
        self._watching: list[asyncio.Task[None]] = []

    def is_here(self, engine: EngineRef) -> bool:
        """Whether nothing says that it is lost."""
        return engine.id not in self._lost or not self._lost[engine.id].is_set()

    def watch(self, session: aiohttp.ClientSession) -> None:
        """Begins to ask; call it once."""
        self._watching = [asyncio.create_task(self._watch(session, engine)) for engine in self._engines]

    async def close(self) -> None:
        """Ends asking."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def unless_lost(self, engine: EngineRef, asked: Coroutine[Any, Any, T]) -> T:
        """What comes of it. Raises UnavailableError, and cancels it, when the engine is lost meanwhile."""
        if engine.id not in self._lost or not self.is_here(engine):
            # Asked although it is lost, for all are: its own time-out ends it.
            return await asked
        task, lost = asyncio.ensure_future(asked), asyncio.ensure_future(self._lost[engine.id].wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise UnavailableError(f"engine {engine.id} does not answer any more")
        finally:
            lost.cancel()
            task.cancel()

    async def _watch(self, session: aiohttp.ClientSession, engine: EngineRef) -> None:
        num_unanswered = 0
        while True:
            num_unanswered = 0 if await self._answers(session, engine) else num_unanswered + 1
            if num_unanswered == 0:
                self._lost[engine.id].clear()
            elif num_unanswered >= _LOST_AFTER:
                self._lost[engine.id].set()
            await asyncio.sleep(self._timeout_s / _POLLS)

    async def _answers(self, session: aiohttp.ClientSession, engine: EngineRef) -> bool:
        url, timeout = engine.url.rstrip("/") + "/health", aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with session.get(url, headers=bearer(engine.token), timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
