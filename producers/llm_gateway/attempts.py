"""The runner's two requests: an attempt begins, and ends with the list of its calls.

In: `/begin {policy, purpose}` and `/end`. Out: sessions; `calls_closed` on `llm_calls`, acknowledged before `/end`
answers. Both may be asked again and then change nothing. Failure: RequestError, SessionError (409, 410, 503),
UnavailableError when the record is not acknowledged: `/end` is to be asked again.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.metrics import ATTEMPTS_ENDED
from tracegrad.schemas.records.calls import CALLS, CallsClosed, Purpose
from tracegrad.schemas.topics import Topic

from ..http_request import path_ids
from .door import read_object
from .parts import Parts

__all__ = ["AttemptEndpoints"]


class AttemptEndpoints:
    """`begin` and `end` of all attempts."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def begin(self, request: Request) -> Response:
        """`POST .../begin`."""
        rollout, attempt = path_ids(request)
        body = await read_object(request, self._parts.config.max_body_bytes)
        policy, purpose = body.get("policy"), Purpose(str(body.get("purpose")))
        if policy != self._parts.policy.name:
            raise RequestError("policy: expected the run's policy, got another", param="policy")
        if purpose is Purpose.UNKNOWN:
            raise RequestError("purpose: expected train or validation, got another", param="purpose")
        episode = self._parts.sessions.begin(rollout, attempt, purpose)
        return JSONResponse({"episode_id": episode})

    async def end(self, request: Request) -> Response:
        """`POST .../end`."""
        rollout, attempt = path_ids(request)
        session = self._parts.sessions.get(rollout, attempt)
        async with session.end_lock:
            if session.end_answer is None:
                await session.close(self._parts.config.end_wait_s)
                calls = session.outcomes()
                outcomes = {call.call_id: call.outcome for call in calls}
                closed = CALLS.encode(CallsClosed(rollout_id=rollout, attempt_id=attempt, outcomes=outcomes))
                await self._parts.append(Topic.LLM_CALLS, key=episode_key(rollout, None), value=closed)
                session.end_answer = msgspec.json.encode({"calls": calls, "fault": session.last_fault})
                session.forget_turns()
                self._parts.sessions.has_room(session)
                self._parts.metrics.add(ATTEMPTS_ENDED)
        return Response(session.end_answer, media_type="application/json")
