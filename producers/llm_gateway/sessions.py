"""The attempts that began here, the captured traces, and their calls in flight.

In: begin, end and the calls of each. Out: sessions. Invariant: after `close` no call enters an attempt, and
`calls_closed` names every call whose record may be on the log; an agent host enters the attempts that began in it.
Memory is bounded: ended attempts keep only their `/end` answer for a while, idle and surplus ones are forgotten and
counted; their calls then get 409, never a guess, as do those of attempts that began at a process that is gone.
One event loop; not thread-safe.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TypeVar

from tracegrad.schemas.credentials import Holder, attempt_holder, is_host
from tracegrad.schemas.errors import ProofError, SessionError
from tracegrad.schemas.ids import AttemptId, EpisodeId, RolloutId, episode_id, run_hash_of, split_episode_id
from tracegrad.schemas.metrics import ATTEMPTS_BEGUN_ELSEWHERE, SESSIONS_FORGOTTEN, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import Purpose

from .config import LlmConfig
from .identity import Caller
from .session import AttemptSession, CapturedSession, Session

_MAX_CAPTURED = 2_000
"""Captured traces whose splice state is remembered."""
_KEEP_ENDED_S = 900.0
"""How long `/end` of an ended attempt can be asked again."""

S = TypeVar("S", bound=Session)


class Sessions:
    """All sessions of this gateway."""

    def __init__(self, config: LlmConfig, *, run_hash: str, metrics: Metrics) -> None:
        self._config = config
        self._run_hash = run_hash
        self._metrics = metrics
        self._attempts: OrderedDict[str, AttemptSession] = OrderedDict()
        self._captured: OrderedDict[str, CapturedSession] = OrderedDict()
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
            self._make_room()
            self._attempts[episode] = AttemptSession(episode, purpose, host)
            return episode
        if session.is_closing:
            raise SessionError(f"attempt {episode}: expected /begin before /end, got it after", status=410)
        if session.purpose is not purpose:
            raise SessionError(f"attempt {episode}: began before with another purpose", status=409)
        session.host = host
        return episode

    def find(self, caller: Caller) -> AttemptSession | None:
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

    def get(self, rollout: RolloutId, attempt: AttemptId) -> AttemptSession:
        """The attempt, ended or not. Raises SessionError (409)."""
        episode = episode_id(rollout, attempt)
        if episode not in self._attempts:
            self._metrics.add(ATTEMPTS_BEGUN_ELSEWHERE)
            raise SessionError(
                f"attempt {episode} did not begin at this gateway (was it restarted?); abort and retry the attempt",
                status=409,
            )
        return self._touch(self._attempts, episode)

    def captured(self, key: str) -> CapturedSession:
        """The session of an agent that nobody began, by its key."""
        if key not in self._captured:
            self._make_room()
            self._captured[key] = CapturedSession(key)
        return self._touch(self._captured, key)

    def known(self, key: str) -> CapturedSession | None:
        """The session of an agent that nobody began, if there is one."""
        return self._captured.get(key)

    def has_room(self, session: Session) -> bool:
        """Counts what a session holds now, forgets old captured traces; whether another call may be remembered."""
        if session in (self._captured.get(session.key), self._attempts.get(session.key)):
            self._num_ids += session.num_ids - session.num_ids_counted
            session.num_ids_counted = session.num_ids
        while self._num_ids > self._config.max_history_ids and self._captured:
            oldest = next(iter(self._captured))
            if self._captured[oldest] is session:
                break
            self._forget(self._captured, oldest, "memory")
        return self._num_ids <= self._config.max_history_ids

    def _forget(self, sessions: OrderedDict[str, S], key: str, why: str) -> None:
        session = sessions.pop(key)
        self._num_ids -= session.num_ids_counted
        self._metrics.add(SESSIONS_FORGOTTEN, "ended" if session.has_ended else "open", why)

    def _touch(self, sessions: OrderedDict[str, S], key: str) -> S:
        sessions.move_to_end(key)
        sessions[key].last_used = time.monotonic()
        return sessions[key]

    def _make_room(self) -> None:
        now = time.monotonic()
        self._evict(self._attempts, self._config.max_attempts, now)
        self._evict(self._captured, _MAX_CAPTURED, now)

    def _evict(self, sessions: OrderedDict[str, S], bound: int, now: float) -> None:
        """Forgets from the least recently used end, so that each look is cheap."""
        while sessions:
            key, session = next(iter(sessions.items()))
            age = now - session.last_used
            is_old = age > (_KEEP_ENDED_S if session.has_ended else self._config.idle_s)
            if not is_old and len(sessions) < bound:
                break
            self._forget(sessions, key, "idle" if is_old else "full")


def _own(named: list[AttemptSession], caller: Caller) -> list[AttemptSession]:
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
            reason=Reason.OTHER_HOST if of_host else Reason.OTHER_ATTEMPT,
        )
    return own
