"""What becomes of captured answers, as the log is told one by one; of an attempt's its end tells.

In: each captured call when it begins and when it has been settled. Out: `call_open` for one that lasts above 5 s, and
`call_ended` with its outcome, whatever that is: for nobody ends a captured conversation as `/end` ends an attempt.
Invariant: an answer never waits for what is told of it; what waits for Kafka is bounded, tried again, and counted when
it is dropped. A gateway that dies tells nothing more; the streams then close the episode at its deadline. One event
loop; not thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.ids import new_call
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.metrics import CALL_OUTCOMES_DROPPED, Metrics
from tracegrad.schemas.records.calls import LLM_CALLS, CallEnded, CallOpen, CallOutcome
from tracegrad.schemas.topics import Topic

from .config import Timings
from .identity import Caller

_MAX_WAITING = 20_000
"""Records; there are more only if Kafka is away for long while calls fail."""
_MAX_AT_ONCE = 500
Append = Callable[..., asyncio.Future[Position]]


class CallWatch:
    """One captured call, from its beginning to its end."""

    def __init__(self, outcomes: Outcomes, caller: Caller) -> None:
        self.call_id = new_call(caller.key)
        """Of its record, if it comes to that."""
        self._outcomes = outcomes
        self._caller = caller
        self._started_ns = time.time_ns()
        self._is_open = False
        self._timer = asyncio.get_running_loop().call_later(outcomes.timings.open_after_s, self._open)

    def _open(self) -> None:
        self._is_open = True
        opened = CallOpen(call_id=self.call_id, **self._caller.names, started_at_ns=self._started_ns)
        self._outcomes.tell(self._caller, opened)

    def settle(self, outcome: CallOutcome | None = None, error: BaseException | None = None) -> None:
        """It has ended, and its answer was sent or could not be; without an outcome it has no record, or that tells."""
        self._timer.cancel()
        if outcome is not None or self._is_open:
            reason = "" if error is None else type(error).__name__
            told = outcome or CallOutcome.UNKNOWN
            ended = CallEnded(call_id=self.call_id, **self._caller.names, outcome=told, reason=reason)
            self._outcomes.tell(self._caller, ended)


class Outcomes:
    """Writes what watches tell, in the background. One per gateway."""

    def __init__(self, append: Append, metrics: Metrics, timings: Timings) -> None:
        self.timings = timings
        self._append = append
        self._metrics = metrics
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        """Key and value of each."""
        self._has_more = asyncio.Event()

    def tell(self, caller: Caller, told: CallOpen | CallEnded) -> None:
        """Hands it to the background; the oldest are dropped, counted, when too many wait."""
        self._waiting.append((caller.record_key, LLM_CALLS.encode(told)))
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft()
            self._metrics.add(CALL_OUTCOMES_DROPPED, "full")
        self._has_more.set()

    async def write(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            while self._waiting:
                if not await self._write_some(self.timings.append_timeout_s):
                    await asyncio.sleep(self.timings.retry_s)

    async def close(self, timeout_s: float) -> None:
        """Writes what waits, if Kafka takes it in time; the rest is dropped, counted."""
        deadline = time.monotonic() + timeout_s
        while self._waiting and time.monotonic() < deadline:
            if not await self._write_some(max(deadline - time.monotonic(), 0.1)):
                await asyncio.sleep(0.1)
        self._metrics.add(CALL_OUTCOMES_DROPPED, "stopped", num=len(self._waiting))

    async def _write_some(self, timeout_s: float) -> bool:
        """Whether the log took all that it was handed; the rest waits again. To write a record twice does no harm."""
        handed = [self._waiting.popleft() for _ in range(min(_MAX_AT_ONCE, len(self._waiting)))]
        appends: list[asyncio.Future[Position]] = []
        try:
            with contextlib.suppress(OverloadedError, UnavailableError):
                for key, value in handed:
                    appends.append(self._append(Topic.LLM_CALLS, key=key, value=value))
            if appends:
                await asyncio.wait(appends, timeout=timeout_s)
        finally:
            kept = handed[len(appends) :]
            kept += [told for told, append in zip(handed, appends, strict=False) if not _is_acknowledged(append)]
            self._waiting.extendleft(reversed(kept))
        return not kept


def _is_acknowledged(append: asyncio.Future[Position]) -> bool:
    return append.done() and not append.cancelled() and append.exception() is None
