"""What becomes of answers: of an attempt's, as its end tells, and of captured ones, as the log is told one by one.

In: each captured call when it begins and when it has been settled. Out: `call_open` for one that lasts above 5 s, and
`call_ended` with its outcome, whatever that is: for nobody ends a captured conversation as `/end` ends an attempt. An
answer that the client did not take is superseded when it asked the same again and got that. Invariant: an answer never
waits for what is told of it; what waits for Kafka is bounded, tried again, and counted when it is dropped. A gateway
that dies tells nothing more; the streams then close the episode at its deadline. One event loop; not thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.ids import CallId, new_call
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.metrics import CALL_OUTCOMES_DROPPED, Metrics
from tracegrad.schemas.records.calls import LLM_CALLS, CallEnded, CallOpen, CallOutcome
from tracegrad.schemas.records.tokens import Ids
from tracegrad.schemas.topics import Topic

from .config import Timings
from .identity import Caller
from .render.finish import Answer

_MAX_WAITING = 20_000
"""Records; there are more only if Kafka is away for long while calls fail."""
_MAX_AT_ONCE = 500
_MAX_REMEMBERED = 32
"""Calls of a conversation that may have been asked again."""
Append = Callable[..., asyncio.Future[Position]]


class _AttemptCall(NamedTuple):
    answer: Answer
    prompt: bytes
    """A digest of its ids."""
    number: int
    """By its start."""


class AttemptCalls:
    """An attempt's calls whose records may be on the log, and how their answers went."""

    def __init__(self) -> None:
        self._calls: list[_AttemptCall] = []

    def add_call(self, answer: Answer, prompt_ids: Ids, number: int) -> None:
        """A call whose record was handed to the log."""
        self._calls.append(_AttemptCall(answer, _digest(prompt_ids), number))

    def withdraw(self, answer: Answer) -> None:
        """The log has refused its record."""
        self._calls = [call for call in self._calls if call.answer is not answer]

    @property
    def last_outcome(self) -> CallOutcome | None:
        """Of the call whose record came last; None: there is no call."""
        return self._calls[-1].answer.outcome if self._calls else None

    def answers(self) -> list[Answer]:
        """All calls' in order; one that was not delivered is superseded when the client asked the same again and got
        it."""
        delivered: dict[bytes, int] = {}
        for answer, prompt, number in sorted(self._calls, key=lambda call: call.number, reverse=True):
            if delivered.get(prompt, 0) > number and answer.outcome is not CallOutcome.DELIVERED:
                answer.outcome = CallOutcome.SUPERSEDED
            if answer.outcome is CallOutcome.DELIVERED:
                delivered.setdefault(prompt, number)
        return [call.answer for call in self._calls]


class _CapturedCall(NamedTuple):
    call_id: CallId
    prompt: bytes
    """A digest of its ids."""
    number: int
    """By its start."""


class Retries:
    """Which answers of a captured conversation were asked for again; the last few are remembered."""

    def __init__(self) -> None:
        self._asked: dict[CallId, _CapturedCall] = {}
        """Those whose record may be on the log and whose answer is not sent yet."""
        self._taken: deque[_CapturedCall] = deque(maxlen=_MAX_REMEMBERED)
        self._untaken: deque[_CapturedCall] = deque(maxlen=_MAX_REMEMBERED)

    def add_call(self, answer: Answer, prompt_ids: Ids, number: int) -> None:
        """A call whose record was handed to the log."""
        self._asked[answer.call_id] = _CapturedCall(answer.call_id, _digest(prompt_ids), number)

    def withdraw(self, answer: Answer) -> None:
        """The log has refused its record; what becomes of it its outcome tells."""

    def settle(self, call_id: CallId, *, is_delivered: bool) -> Iterator[tuple[CallId, CallOutcome]]:
        """What is known now: of this call, and of earlier ones that it supersedes; nothing of one that was never
        added."""
        asked = self._asked.pop(call_id, None)
        if asked is None:
            return
        if not is_delivered:
            newer = any(one.prompt == asked.prompt and one.number > asked.number for one in self._taken)
            if not newer:
                self._untaken.append(asked)
            yield call_id, CallOutcome.SUPERSEDED if newer else CallOutcome.CLIENT_DISCONNECTED
            return
        self._taken.append(asked)
        yield call_id, CallOutcome.DELIVERED
        for one in [one for one in self._untaken if one.prompt == asked.prompt and one.number < asked.number]:
            self._untaken.remove(one)
            yield one.call_id, CallOutcome.SUPERSEDED


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

    def settle(
        self, retries: Retries | None = None, *, is_delivered: bool = False, error: BaseException | None = None
    ) -> None:
        """It has ended, and its answer was sent or could not be; without `retries` that is told elsewhere."""
        self._timer.cancel()
        reason = "" if error is None else type(error).__name__
        known = list(retries.settle(self.call_id, is_delivered=is_delivered)) if retries is not None else []
        if not known and self._is_open:
            known = [(self.call_id, CallOutcome.UNKNOWN)]
        for call_id, outcome in known:
            ended = CallEnded(call_id=call_id, **self._caller.names, outcome=outcome, reason=reason)
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


def _digest(prompt_ids: Ids) -> bytes:
    return hashlib.sha256(prompt_ids.tobytes()).digest()


def _is_acknowledged(append: asyncio.Future[Position]) -> bool:
    return append.done() and not append.cancelled() and append.exception() is None
