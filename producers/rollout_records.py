"""Builds the events of a rollout from its request, so that runner and tasks write them alike."""

from __future__ import annotations

import time

from tracegrad.schemas.records.rollouts import RolloutEvent, RolloutRequest, RolloutState
from tracegrad.schemas.text import clean

__all__ = ["event_of"]

_MAX_ERROR_CHARS = 2000


def event_of(
    request: RolloutRequest,
    attempt: str,
    number: int,
    state: RolloutState,
    *,
    is_final: bool = False,
    error: str | None = None,
) -> RolloutEvent:
    """An event that repeats what later stages need of the request."""
    return RolloutEvent(
        rollout_id=request.rollout_id,
        attempt_id=attempt,
        attempt_number=number,
        state=state,
        is_final=is_final,
        error=clean(error[:_MAX_ERROR_CHARS]) if error else None,
        rewards_awaited=request.rewards_awaited,
        group=request.group,
        task_id=request.task_id,
        policy=request.policy,
        purpose=request.purpose,
        at_ms=int(time.time() * 1000),
    )
