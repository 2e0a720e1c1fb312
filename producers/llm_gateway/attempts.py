"""The runner's two requests: an attempt begins, and ends with the list of its calls.

In: `/begin {policy, purpose}` and `/end`. Out: sessions; `calls_closed` on `llm_calls`, acknowledged before `/end`
answers. Both may be asked again and then change nothing. Failure: RequestError, SessionError (409, 410, 503),
UnavailableError when the record is not acknowledged: `/end` is to be asked again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tracegrad.schemas.errors import RequestError, UnavailableError
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.log.protocol import LogWriter
from tracegrad.schemas.records.calls import Purpose

from .config import LlmGatewayConfig
from .door import json_response, path_ids, read_body
from .record import closed_record
from .sessions import Sessions

__all__ = ["AttemptEndpoints"]


class AttemptEndpoints:
    """`begin` and `end` of all attempts."""

    def __init__(
        self,
        config: LlmGatewayConfig,
        sessions: Sessions,
        *,
        writer: Callable[[], LogWriter],
        topic: str,
        counters: Counter[str],
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._writer = writer
        self._topic = topic
        self._counters = counters

    async def begin(self, request: Request) -> Response:
        """`POST .../begin`."""
        rollout, attempt = path_ids(request)
        body = await read_body(request, self._config.max_body_bytes)
        policy, purpose = body.get("policy"), Purpose(str(body.get("purpose")))
        if policy not in {known.name for known in self._config.policies}:
            raise RequestError("policy: expected one of the run's policies, got another", param="policy")
        if purpose is Purpose.UNKNOWN:
            raise RequestError("purpose: expected train or validation, got another", param="purpose")
        episode = self._sessions.begin(rollout, attempt, policy=str(policy), purpose=purpose)
        return json_response({"episode_id": episode})

    async def end(self, request: Request) -> Response:
        """`POST .../end`."""
        rollout, attempt = path_ids(request)
        session = self._sessions.get(rollout, attempt)
        async with session.end_lock:
            if session.end_answer is None:
                await session.close(self._config.end_wait_s)
                calls = session.outcomes()
                value = closed_record(rollout, attempt, {call.call_id: call.outcome for call in calls})
                await self._append(episode_key(rollout, None), value)
                session.end_answer = msgspec.json.encode({"calls": calls, "fault": session.last_fault})
                session.forget_turns()
                self._sessions.has_room(session)
                self._counters["attempts_ended"] += 1
        return Response(session.end_answer, media_type="application/json")

    async def _append(self, key: bytes, value: bytes) -> None:
        acknowledged = asyncio.wrap_future(self._writer().append(self._topic, key=key, value=value))
        done, _ = await asyncio.wait({acknowledged}, timeout=self._config.append_timeout_s)
        if not done:
            raise UnavailableError("the record was not acknowledged in time; try again")
        acknowledged.result()
