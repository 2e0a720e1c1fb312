"""The attempts that began here, the captured traces, and their calls in flight.

In: begin, end and the calls of each. Out: sessions. Invariant: after `close` no call enters an attempt, and
`calls_closed` names every call whose record may be on the log; an agent host enters the attempts that began in it.
Memory is bounded: ended attempts keep only their `/end` answer for a while, idle and surplus ones are forgotten and
counted; their calls then get 409, never a guess, as do those of attempts that began at a process that is gone.
One event loop; not thread-safe.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.credentials import Holder, attempt_holder, is_host
from tracegrad.schemas.errors import ProofError, SessionError
from tracegrad.schemas.ids import AttemptId, EpisodeId, RolloutId, episode_id, run_hash_of, split_episode_id
from tracegrad.schemas.metrics import ATTEMPTS_BEGUN_ELSEWHERE, SESSIONS_FORGOTTEN, Metrics
from tracegrad.schemas.records.calls import CallOutcome, Purpose
from tracegrad.schemas.records.rollouts import Reward
from tracegrad.schemas.records.tokens import Ids

from .config import LlmConfig
from .conversations import Conversations
from .identity import Caller
from .outcomes import AttemptCalls, Retries
from .render.finish import Answer
from .render.splice import SpliceHistory

__all__ = ["Session", "Sessions"]

_MAX_CAPTURED = 2_000
"""Captured traces whose splice state is remembered."""
_MAX_TOOL_CALLS = 1_000
"""Of one captured conversation, remembered by their ids."""
_KEEP_ENDED_S = 900.0
"""How long `/end` of an ended attempt can be asked again."""


class Session:
    """One attempt, or one captured conversation: its purpose, its served calls."""

    def __init__(self, key: str, purpose: Purpose, host: Holder | None = None) -> None:
        self.key = key
        self.purpose = purpose
        self.host = host
        """The agent host that works on it; None: a command, or nobody that a runner started."""
        self.is_unnamed = False
        """Of a captured conversation whose requests name nothing: they find it by what was said."""
        self.tool_calls: BoundedMap[str, bytes] = BoundedMap(_MAX_TOOL_CALLS)
        """Of a captured conversation: those that its last answers ask for, by id, and which client got the answer."""
        self.history = SpliceHistory()
        self.conversations = Conversations()
        self.last_used = time.monotonic()
        self.is_closing = False
        self.end_answer: bytes | None = None
        self.end_lock = asyncio.Lock()
        self.num_ids_counted = 0
        """Token ids of its history and conversations as its registry counted them."""
        self.last_fault: int | None = None
        """Status of the call that ended last, if that was the gateway's or the engine's fault (503)."""
        self.agent_reward: Reward | None = None
        """What its agent said last of its own reward; on the log with the attempt's end."""
        self._was_waiting = False
        self.retries = Retries()
        """Of a captured conversation."""
        self.calls = AttemptCalls()
        """Of an attempt."""
        self._running: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._num_inflight = 0

    @property
    def num_ids(self) -> int:
        """Token ids that it holds."""
        return self.history.num_ids + self.conversations.num_ids

    def remember_tools(self, ids: Sequence[str], scope: bytes) -> None:
        """An answer to this client asks for these tool calls."""
        self.tool_calls.update(dict.fromkeys(ids, scope))

    def enter(self) -> None:
        """A call is in flight until `leave`, when its answer is sent. Raises SessionError (410) after the end."""
        if self.is_closing:
            raise SessionError(f"attempt {self.key}: expected no call after /end, got one", status=410)
        self._hold()

    def _hold(self) -> None:
        self._num_inflight += 1
        self._idle.clear()

    def leave(self) -> None:
        """The call, or an append, has ended."""
        self._num_inflight -= 1
        if self._num_inflight == 0:
            self._idle.set()

    @contextmanager
    def cancellable(self) -> Iterator[int]:
        """Marks the running task as one that `close` may cancel: nothing of it is on the log yet. Yields the call's
        number, by its start."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            yield self.calls.next_number()
        finally:
            self._running.discard(task)

    def register(self, answer: Answer, prompt_ids: Ids, number: int, append: asyncio.Future[Any]) -> None:
        """Adds a call whose record was just handed to the log; one that the log refuses, now or late, is withdrawn.

        The session is in flight until the append has ended: `/end` waits for a late one and then names the call, as
        one that nobody was answered by.
        """
        if self.purpose is not Purpose.UNKNOWN:
            self.calls.add(answer, prompt_ids, number)
        else:
            self.retries.register(answer.call_id, prompt_ids, number)
        self._hold()

        def settle(ended: asyncio.Future[Any]) -> None:
            if ended.cancelled() or ended.exception() is not None:
                self.calls.withdraw(answer)
            self.leave()

        append.add_done_callback(settle)

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

    def was_waiting(self) -> bool:
        """Whether the agent had no answer yet to its last call when the end came."""
        return self._was_waiting or self.calls.last_outcome is CallOutcome.CLIENT_DISCONNECTED

    def end(self, answers: Sequence[Answer]) -> None:
        """It is over, with these calls: what `/end` answers from now on. Frees what only further calls would need."""
        told = {"calls": answers, "fault": self.last_fault, "was_waiting": self.was_waiting()}
        self.end_answer = msgspec.json.encode(told)
        self.history, self.conversations = SpliceHistory(), Conversations()
        self.calls = AttemptCalls()


class Sessions:
    """All sessions of this gateway."""

    def __init__(self, config: LlmConfig, *, run_hash: str, metrics: Metrics) -> None:
        self._config = config
        self._run_hash = run_hash
        self._metrics = metrics
        self._attempts: OrderedDict[str, Session] = OrderedDict()
        self._captured: OrderedDict[str, Session] = OrderedDict()
        self._num_ids = 0

    @property
    def has_attempts(self) -> bool:
        """Whether a runner's attempts are known here, also such that have just ended: their processes may live."""
        return bool(self._attempts)

    def begin(self, rollout: RolloutId, attempt: AttemptId, purpose: Purpose, host: Holder | None) -> EpisodeId:
        """Opens an attempt; the same again changes nothing but its host. Raises SessionError (409, 410)."""
        episode = episode_id(rollout, attempt)
        session = self._attempts.get(episode)
        if session is None:
            self._open(self._attempts, episode, purpose, host)
            return episode
        if session.is_closing:
            raise SessionError(f"attempt {episode}: expected /begin before /end, got it after", status=410)
        if session.purpose is not purpose:
            raise SessionError(f"attempt {episode}: began before with another purpose", status=409)
        session.host = host
        return episode

    def find(self, caller: Caller) -> Session | None:
        """The session that the claims name; None when they name no rollout of this run.

        Raises:
            SessionError: the attempt did not begin here (409), or it has ended (410).
            ProofError: the attempt is not that of the caller's credential.
        """
        if caller.rollout_id is None:
            return None
        if caller.attempt_id is not None:
            known = self._attempts.get(episode_id(caller.rollout_id, caller.attempt_id))
            _own([known] if known else [], caller)
            return self.get(caller.rollout_id, caller.attempt_id)
        named = (session for key, session in self._attempts.items() if split_episode_id(key)[0] == caller.rollout_id)
        running = _own([session for session in named if not session.is_closing], caller)
        if len(running) == 1:
            return self._touch(self._attempts, running[0].key)
        if run_hash_of(caller.rollout_id) == self._run_hash or running:
            raise SessionError(
                f"rollout {caller.rollout_id}: expected one attempt that runs here, found {len(running)}; "
                "name the attempt, or let the runner begin one",
                status=409,
            )
        return None

    def get(self, rollout: RolloutId, attempt: AttemptId) -> Session:
        """The attempt, ended or not. Raises SessionError (409)."""
        episode = episode_id(rollout, attempt)
        if episode not in self._attempts:
            self._metrics.add(ATTEMPTS_BEGUN_ELSEWHERE)
            raise SessionError(
                f"attempt {episode} did not begin at this gateway (was it restarted?); abort and retry the attempt",
                status=409,
            )
        return self._touch(self._attempts, episode)

    def captured(self, key: str) -> Session:
        """The session of an agent that nobody began, by its key."""
        if key not in self._captured:
            self._open(self._captured, key, Purpose.UNKNOWN)
        return self._touch(self._captured, key)

    def known(self, key: str) -> Session | None:
        """The session of an agent that nobody began, if there is one."""
        return self._captured.get(key)

    def has_room(self, session: Session) -> bool:
        """Counts what a session holds now, forgets old captured traces; whether another call may be remembered."""
        registry = self._captured if session.purpose is Purpose.UNKNOWN else self._attempts
        if registry.get(session.key) is session:
            self._num_ids += session.num_ids - session.num_ids_counted
            session.num_ids_counted = session.num_ids
        while self._num_ids > self._config.max_history_ids and self._captured:
            oldest = next(iter(self._captured))
            if self._captured[oldest] is session:
                break
            self._forget(self._captured, oldest, "memory")
        return self._num_ids <= self._config.max_history_ids

    def _forget(self, sessions: OrderedDict[str, Session], key: str, why: str) -> None:
        session = sessions.pop(key)
        self._num_ids -= session.num_ids_counted
        self._metrics.add(SESSIONS_FORGOTTEN, "ended" if session.end_answer else "open", why)

    def _touch(self, sessions: OrderedDict[str, Session], key: str) -> Session:
        sessions.move_to_end(key)
        sessions[key].last_used = time.monotonic()
        return sessions[key]

    def _open(
        self, sessions: OrderedDict[str, Session], key: str, purpose: Purpose, host: Holder | None = None
    ) -> None:
        now = time.monotonic()
        self._evict(self._attempts, self._config.max_attempts, now)
        self._evict(self._captured, _MAX_CAPTURED, now)
        sessions[key] = Session(key, purpose, host)

    def _evict(self, sessions: OrderedDict[str, Session], bound: int, now: float) -> None:
        """Forgets from the least recently used end, so that each look is cheap."""
        while sessions:
            key, session = next(iter(sessions.items()))
            age = now - session.last_used
            is_old = age > (_KEEP_ENDED_S if session.end_answer else self._config.idle_s)
            if not is_old and len(sessions) < bound:
                break
            self._forget(sessions, key, "idle" if is_old else "full")


def _own(named: list[Session], caller: Caller) -> list[Session]:
    """Those of the named attempts that the caller may enter: an agent host those that began in it, a command its own,
    also where it names the rollout alone, of which an earlier attempt may still have a process.

    Raises ProofError when it is none of them, before anything of theirs is touched.
    """
    holder = caller.holder
    if holder is None:
        return named
    of_host = is_host(holder)
    own = [
        session
        for session in named
        if holder == (session.host if of_host else attempt_holder(*split_episode_id(session.key)))
    ]
    if named and not own:
        what = "agent host in which it began" if of_host else "command that works on it"
        raise ProofError(
            f"attempt {named[0].key}: expected the {what}, got {holder}; name no attempt but your own",
            reason="other_host" if of_host else "other_attempt",
        )
    return own
