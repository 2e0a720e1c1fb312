"""Reads the sources of `[feedback.sources]` beside the gateway's requests: each score becomes a piece of feedback.

    a vendor's pages -> Found -> the object that /v1/rewards takes -> Reward -> accept (the log)

In: the sources, their keys. Out: Rewards under `<source>/<id of the score>`, of the vendor's own time. Invariants: each
reading looks back over the same while, so that neither clocks that differ, nor a failure, nor a restart of ours loses a
score; one that is read again counts once; one that was changed revises. Nothing is remembered but what this process has
written, to write it once. Failure: one source's is counted by reason, told, and tried again with growing pauses; it
ends neither the gateway nor another source.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import aiohttp

from tracegrad.schemas.errors import OverloadedError, RequestError, SourceError, UnavailableError
from tracegrad.schemas.metrics import SCORES, SOURCES_AWAY, SOURCES_FAILED, Metrics
from tracegrad.schemas.records.rollouts import Reward
from tracegrad.schemas.retry import retry_async

from ...read_feedback import fault_of, read_feedback
from ..config import FeedbackConfig, FeedbackHandles, SourceConfig, SourceKind
from . import langfuse, mlflow, phoenix
from .asking import Asking
from .found import Ask, Found, Pages, Unread

__all__ = ["Polls"]

_MAX_PAUSE_S = 15.0
"""What people wait for closes after `wait_s`, so a source that is back is soon read; or `every_s`, if that is more."""
_MAX_WRITTEN = 100_000
"""Of a source: more than a reading has."""
_MAX_REASON_CHARS = 2_000
_FAILURES = (UnavailableError, OverloadedError, TimeoutError)
_OF_ONE_SPAN = ("400", "500", "form", "too_large")
"""Why a span cannot be asked for that others may be."""

logger = logging.getLogger(__name__)


class _Vendor(NamedTuple):
    scores: Callable[[Ask, SourceConfig, Sequence[str], datetime], Pages]
    answer_of: Callable[[Ask, SourceConfig, Found], Awaitable[str | None]]


_VENDORS = {
    SourceKind.LANGFUSE: _Vendor(langfuse.scores, langfuse.answer_of),
    SourceKind.PHOENIX: _Vendor(phoenix.scores, phoenix.answer_of),
    SourceKind.MLFLOW: _Vendor(mlflow.scores, mlflow.answer_of),
}


class Polls:
    """All sources of one gateway.

    Args:
        accept: returns when the log has acknowledged; raises as the log does.
    """

    def __init__(
        self,
        config: FeedbackConfig,
        handles: FeedbackHandles,
        *,
        accept: Callable[[Sequence[Reward]], Awaitable[None]],
        metrics: Metrics,
        now_s: Callable[[], float] = time.time,
        first_pause_s: float = 1.0,
    ) -> None:
        self._config = config
        self._handles = handles
        self._accept = accept
        self._metrics = metrics
        self._now_s = now_s
        self._first_pause_s = first_pause_s
        self._written = {source.label: _Written() for source in config.sources}

    @contextlib.asynccontextmanager
    async def beside(self, _application: object) -> AsyncIterator[None]:
        """While the application lives."""
        # No proxy, netrc or cookie of the environment: who is asked, and with which key, the settings say.
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
            for source in self._config.sources:
                self._metrics.set(SOURCES_AWAY, 0, source.label)
            reading = [asyncio.create_task(self._poll(http, source)) for source in self._config.sources]
            for task in reading:
                task.add_done_callback(_tell)
            try:
                yield
            finally:
                for task in reading:
                    task.cancel()
                await asyncio.gather(*reading, return_exceptions=True)

    async def _poll(self, http: aiohttp.ClientSession, source: SourceConfig) -> None:
        while True:
            await retry_async(
                partial(self.read, http, source),
                doing=f"reading the scores of {source.label}",
                on=_FAILURES,
                first_s=self._first_pause_s,
                max_s=max(_MAX_PAUSE_S, source.every_s),
            )
            await asyncio.sleep(source.every_s)

    async def read(self, http: aiohttp.ClientSession, source: SourceConfig) -> None:
        """One reading: what is new is accepted page by page. Raises SourceError, or as the log does."""
        ask = Asking(http, source, self._handles.source_keys.get(source.label))
        ours = source.names or {name: name for name in self._config.names}
        since = datetime.fromtimestamp(self._now_s(), UTC) - timedelta(seconds=source.look_back_s)
        try:
            failed: SourceError | None = None
            async with contextlib.aclosing(_VENDORS[source.kind].scores(ask, source, list(ours), since)) as pages:
                async for page in pages:
                    failed = await self._take(ask, source, ours, page) or failed
            if failed is not None:
                raise failed
        except _FAILURES as error:
            reason = error.reason if isinstance(error, SourceError) else "log"
            self._metrics.add(SOURCES_FAILED, source.label, reason)
            self._metrics.set(SOURCES_AWAY, 1, source.label)
            raise
        self._metrics.set(SOURCES_AWAY, 0, source.label)

    async def _take(
        self, ask: Ask, source: SourceConfig, ours: Mapping[str, str], page: Sequence[Found | Unread]
    ) -> SourceError | None:
        """Accepts what is new on a page. Returns why the answer of a score could not be asked for, if that is of its
        span alone: the score is left to the next reading. Raises SourceError if it is not, when all before it is
        accepted."""
        written, outcomes = self._written[source.label], list[str]()
        failed: SourceError | None = None
        fresh, rewards = dict[str, Found | Unread](), list[Reward]()
        # Of what a page tells of one score, the last word.
        latest = {one.id: one for one in sorted(page, key=lambda one: one.at_ms)}
        for id_, one in latest.items():
            if written.has(id_, one) or (isinstance(one, Found) and one.name not in ours):
                continue
            try:
                reward = await self._reward(ask, source, ours, one, written.next_ms(id_))
            except SourceError as error:
                failed = error
                if error.reason not in _OF_ONE_SPAN:
                    break
                continue
            except RequestError as error:
                outcomes.append(fault_of(error))
            else:
                outcomes.append("taken")
                rewards.append(reward)
            fresh[id_] = one
        if rewards:
            await self._accept(rewards)
        # Only now: what the log did not take is read again.
        for id_, one in fresh.items():
            written.add(id_, one)
        for outcome in outcomes:
            self._metrics.add(SCORES, source.label, outcome)
        if failed is not None and failed.reason not in _OF_ONE_SPAN:
            raise failed
        return failed

    async def _reward(
        self, ask: Ask, source: SourceConfig, ours: Mapping[str, str], one: Found | Unread, next_ms: int
    ) -> Reward:
        if isinstance(one, Unread):
            raise RequestError("expected a score as its vendor gives it, got another")
        answer_of, answer = _VENDORS[source.kind].answer_of, None
        if one.span_id and one.trace_id:
            try:
                answer = await answer_of(ask, source, one)
            except SourceError as error:
                # A span that is not there tells of no answer.
                if error.reason != "404":
                    raise
        item: dict[str, Any] = {
            "name": ours[one.name],
            "value": source.labels.get(one.value) if isinstance(one.value, str) else one.value,
            "reason": (one.reason or "")[:_MAX_REASON_CHARS],
            "idempotency_key": f"{source.label}/{one.id}",
        }
        if answer is not None:
            item["response_id"] = answer
        else:
            item |= {"trace_id": one.trace_id, "conversation_id": one.conversation_id}
        # A vendor that changes a score within the same tick of its clock has changed it all the same.
        return read_feedback(item, self._config.names, self._handles.run_hash, at_ms=max(one.at_ms, next_ms))


class _Written:
    """What of one source is on the log, or passed over, by the score's id; the least recently seen goes first."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Id -> (hash of the score, its time)."""

    def has(self, id_: str, one: Found | Unread) -> bool:
        """Whether it is as it was."""
        if id_ in self._last:
            self._last.move_to_end(id_)
        return id_ in self._last and self._last[id_][0] == hash(one)

    def next_ms(self, id_: str) -> int:
        """The least time that a change of it has."""
        return self._last[id_][1] + 1 if id_ in self._last else 0

    def add(self, id_: str, one: Found | Unread) -> None:
        """As it is now."""
        self._last[id_] = hash(one), max(one.at_ms, self.next_ms(id_))
        self._last.move_to_end(id_)
        if len(self._last) > _MAX_WRITTEN:
            self._last.popitem(last=False)


def _tell(task: asyncio.Task[None]) -> None:
    """A fault of ours ends the reading of that source alone."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a source is read no more", exc_info=error)
