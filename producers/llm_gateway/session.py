"""What the gateway knows of one episode while it lasts: of an attempt, which a runner begins and ends, or of a captured
conversation, which nobody ends.

In: calls, from when they begin until their answer is sent and their record acknowledged. Out: what the next call goes
on from; of an attempt its calls, when it ends. Invariant: after `close` no call enters an attempt, and its calls name
every one whose record may be on the log. One event loop; not thread-safe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.credentials import Holder
from tracegrad.schemas.errors import SessionError
from tracegrad.schemas.ids import CallId
from tracegrad.schemas.records.calls import CallOutcome, Purpose
from tracegrad.schemas.records.rollouts import Reward

from .api.chat_request import Message
from .render.finish import Answer
from .render.splice import SpliceHistory

_MAX_TOOL_CALLS = 1_000
"""Of one captured conversation, remembered by their ids."""
_BYTES_PER_ID = 4
"""Of a token id in the history, and about as much of the text that it stands for."""


class Conversations:
    """What an agent may go on with by naming an answer, instead of sending it again: of each served answer all that was
    said up to it. Of one episode: no answer is found from another. What is forgotten is told as unknown, never guessed.
    """

    def __init__(self) -> None:
        self._by_answer: dict[CallId, tuple[bytes, tuple[Message, ...]]] = {}
        self.num_ids = 0
        """What is held, as so many token ids."""

    def keep(self, call_id: CallId, messages: tuple[Message, ...], scope: bytes = b"") -> None:
        """Adds a conversation that ends with an answer, and which client got that."""
        self._by_answer[call_id] = scope, messages
        self.num_ids += sum(len(msgspec.json.encode(message)) for message in messages) // _BYTES_PER_ID

    def find(self, call_id: CallId, scope: bytes | None = None) -> tuple[Message, ...] | None:
        """The conversation that ends with this answer, if it is kept here, and for this client, if one is given."""
        of, messages = self._by_answer.get(call_id, (None, None))
        return messages if scope in (None, of) else None


class Session:
    """What both kinds have: what was served, and the calls in flight."""

    def __init__(self, key: str, purpose: Purpose) -> None:
        self.key = key
        self.purpose = purpose
        self.answers: dict[CallId, Answer] = {}
        """Those whose records may be on the log, in that order: all of an attempt, of others those not sent yet."""
        self.history = SpliceHistory()
        self.conversations = Conversations()
        self.last_used = time.monotonic()
        self.num_ids_counted = 0
        """Token ids of its history and conversations as its registry counted them."""
        self._running: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._num_inflight = 0

    @property
    def num_ids(self) -> int:
        """Token ids that it holds."""
        return self.history.num_ids + self.conversations.num_ids

    @property
    def has_ended(self) -> bool:
        """Whether no call will come any more."""
        return False

    def enter(self) -> None:
        """A call is in flight until `leave`, when its answer is sent."""
        self._num_inflight += 1
        self._idle.clear()

    def leave(self) -> None:
        """The call, or an append, has ended."""
        self._num_inflight -= 1
        if self._num_inflight == 0:
            self._idle.set()

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Marks the running task as one that an attempt's `close` may cancel: nothing of it is on the log yet."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)

    def register(self, answer: Answer, append: asyncio.Future[Any]) -> None:
        """Adds a call whose record was just handed to the log; one that the log refuses, now or late, is withdrawn.

        The session is in flight until the append has ended: `/end` waits for a late one and then names the call, as
        one that nobody was answered by.
        """
        self.answers[answer.call_id] = answer
        Session.enter(self)  # also behind the end

        def settle(ended: asyncio.Future[Any]) -> None:
            if ended.cancelled() or ended.exception() is not None:
                self.answers.pop(answer.call_id, None)
            self.leave()

        append.add_done_callback(settle)


class CapturedSession(Session):
    """A conversation of an agent that no runner started."""

    def __init__(self, key: str) -> None:
        super().__init__(key, Purpose.UNKNOWN)
        self.is_unnamed = False
        """Its requests name nothing: they find it by what was said."""
        self.tool_calls: BoundedMap[str, bytes] = BoundedMap(_MAX_TOOL_CALLS)
        """Those that its last answers ask for, by id, and which client got the answer."""


class AttemptSession(Session):
    """An attempt that a runner began."""

    def __init__(self, key: str, purpose: Purpose, host: Holder | None) -> None:
        super().__init__(key, purpose)
        self.host = host
        """The agent host that works on it; None: a command."""
        self.is_closing = False
        self.end_answer: bytes | None = None
        self.end_lock = asyncio.Lock()
        self.last_fault: int | None = None
        """Status of the call that ended last, if that was the gateway's or the engine's fault (503)."""
        self.agent_reward: Reward | None = None
        """What its agent said last of its own reward; on the log with the attempt's end."""
        self._was_waiting = False

    @property
    def has_ended(self) -> bool:
        """Whether its end was answered."""
        return self.end_answer is not None

    def enter(self) -> None:
        """As Session.enter. Raises SessionError (410) after the end."""
        if self.is_closing:
            raise SessionError(f"attempt {self.key}: expected no call after /end, got one", status=410)
        super().enter()

    async def close(self, wait_s: float) -> None:
        """Lets no call enter, waits for those in flight, cancels what still samples after `wait_s`.

        Raises SessionError (503) when some call can be neither finished nor cancelled in time.
        """
        self._was_waiting = self._was_waiting or (not self.is_closing and not self._idle.is_set())
        self.is_closing = True
        if await self._is_idle(wait_s):
            return
        for task in list(self._running):
            task.cancel()
        if not await self._is_idle(wait_s):
            raise SessionError(f"attempt {self.key}: calls in flight do not end; try again", status=503)

    async def _is_idle(self, wait_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._idle.wait()
        return self._idle.is_set()

    def end(self) -> None:
        """It is over, with its calls: what `/end` answers from now on. Frees what only further calls would need."""
        answers = list(self.answers.values())
        # The agent had no answer yet to its last call when the end came.
        was_waiting = self._was_waiting or (bool(answers) and answers[-1].outcome is CallOutcome.CLIENT_DISCONNECTED)
        told = {"calls": answers, "fault": self.last_fault, "was_waiting": was_waiting}
        self.end_answer = msgspec.json.encode(told)
        self.history, self.conversations = SpliceHistory(), Conversations()
        self.answers = {}
