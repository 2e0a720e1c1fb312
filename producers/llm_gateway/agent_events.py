"""What an agent of Agent Lightning 1.0 tells of its attempt: events by POST, of which `reward` is understood.

    POST /api/rollouts/{r}/attempt/{a}/events {event_type, data}

In: events of an attempt that runs here, under its credential. Out: the event as Agent Lightning's own server answers
it, and, at the attempt's end, one `rewards` record of source `agent` with the value that came last, on which that
framework trains too. Invariants: who may post is judged as for calls; what is said here counts only where the run
trusts its agent; an attempt has one such record at most, so that no episode closes on an earlier value. Failure:
RequestError (400) for what is no event, SessionError (409, 410) before the attempt began here and after its end.
Events of other types are answered, counted and let go.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import split_episode_id
from tracegrad.schemas.keys import rollout_key
from tracegrad.schemas.metrics import AGENT_EVENTS
from tracegrad.schemas.records.rollouts import AGENT_REWARD, AGENT_SOURCE, REWARDS, Reward, is_usable
from tracegrad.schemas.topics import Topic

from ..http_request import holder_of, read_object
from .identity import claims_of, judge
from .parts import Parts
from .session import AttemptSession

EVENTS_PATH = "/api/rollouts/{rollout}/attempt/{attempt}/events"


class AgentEvents:
    """The route of events, and what becomes of them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def post(self, request: Request) -> Response:
        """One event."""
        session = await self._session(request)
        session.enter()
        try:
            with self._parts.budgets[True].share() as share:
                body = await read_object(request, self._parts.config.max_body_bytes, share)
            kind, data = _event(body)
            if kind == "reward":
                session.agent_reward = _reward(session, data)
            self._parts.metrics.add(AGENT_EVENTS, "reward" if kind == "reward" else "other")
        finally:
            session.leave()
        rollout, attempt = split_episode_id(session.key)
        names = {"event_type": kind, "rollout_id": rollout, "attempt_id": attempt}
        return JSONResponse({**names, "timestamp": time.time(), "data": data})

    async def _session(self, request: Request) -> AttemptSession:
        """The attempt that the path names, which the credential must be of."""
        handles = self._parts.handles
        caller = judge(claims_of(request), holder_of(request.headers, handles.key), handles.run_hash)
        session = self._parts.sessions.find(caller)
        if session is None:
            raise RequestError(
                "expected events of an attempt that a runner of this run started, got those of another rollout; of "
                "agents that nobody starts, rewards are read from spans",
                status=404,
            )
        return session

    async def settle(self, session: AttemptSession) -> None:
        """Writes the attempt's last word on its reward, if it gave one; the same record when it is asked again."""
        reward = session.agent_reward
        if reward is not None:
            key = rollout_key(reward.rollout_id)
            await self._parts.acknowledged(self._parts.append(Topic.REWARDS, key=key, value=REWARDS.encode(reward)))


def _event(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    kind, data = body.get("event_type"), body.get("data", {})
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise RequestError('expected {"event_type": "a text", "data": {..}}, got something else')
    return kind, data


def _reward(session: AttemptSession, data: dict[str, Any]) -> Reward:
    given = data.get("value")
    try:
        value = msgspec.convert(given, float)
    except msgspec.ValidationError:
        value = None
    if value is None and isinstance(given, bool):
        value = float(given)
    if not is_usable(value):
        raise RequestError("data.value: expected a finite number, got something else", param="data.value")
    rollout, attempt = split_episode_id(session.key)
    return Reward(
        rollout_id=rollout,
        attempt_id=attempt,
        name=AGENT_REWARD,
        value=value,
        source=AGENT_SOURCE,
        idempotency_key=f"{rollout}/{attempt}/{AGENT_REWARD}",
        at_ms=time.time_ns() // 1_000_000,
    )
