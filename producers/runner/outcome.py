"""How an attempt ended, as the agent's host or process tells, and whose fault it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tracegrad.schemas.credentials import Holder
from tracegrad.schemas.records.rollouts import Reward, RolloutRequest, RolloutState
from tracegrad.schemas.text import decode_json

__all__ = ["Begin", "Outcome", "RunAgent", "from_host", "gateway_fault"]

_GATEWAY_FAULTS = frozenset({408, 409, 410, 425, 429})
"""Beside 5xx: the gateway forgot or closed the attempt, or was overloaded. Other 4xx are the agent's doing."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended and what it was worth."""

    state: RolloutState
    output: Any = None
    error: str | None = None
    duration_s: float = 0.0
    spans_exported: int | None = None
    spans_lost: int = 0
    host: Holder | None = None
    """The agent host that it ran in."""
    is_crash: bool = False
    """Its process died of itself while this try ran in it, perhaps because of it."""
    calls_closed: bool = False
    rewards: tuple[Reward, ...] = ()


Begin = Callable[[Holder | None], Awaitable[None]]
"""Tells the gateway, before the agent starts, in which agent host it runs. Raises UnavailableError."""
RunAgent = Callable[[RolloutRequest, str, Begin], Awaitable[Outcome]]
"""A place where an agent can run now: a request and its attempt -> how that ended; UnavailableError is `Begin`'s."""


def gateway_fault(http_errors: list[dict[str, Any]], llm_url: str) -> str | None:
    """Why the gateway is to blame for the error that ended the agent; None when it is not."""
    for error in http_errors:
        # Agents put anything into their exceptions: what is no URL is not taken apart.
        if not f"{error['url']}/".startswith(f"{llm_url.rstrip('/')}/"):
            continue
        status = error["status"]
        if status is None:
            return "the LLM gateway did not answer"
        if status >= 500 or status in _GATEWAY_FAULTS:
            return f"the LLM gateway answered {status}"
    return None


def from_host(message: dict[str, Any], llm_url: str) -> Outcome:
    """The result that an agent host reported."""
    state, error, output = RolloutState(message["state"]), message.get("error"), None
    try:
        output = decode_json(message.get("output") or "null")
    except (ValueError, RecursionError) as failure:
        state, error = RolloutState.FAILED, f"its output cannot be decoded: {type(failure).__name__}"
    fault = gateway_fault(message.get("http_errors", []), llm_url)
    if state is RolloutState.FAILED and fault is not None:
        state, error = RolloutState.ABORTED, fault
    return Outcome(
        state=state,
        output=output,
        error=error,
        duration_s=message["duration_s"],
        spans_exported=message["spans_exported"],
        spans_lost=message["spans_lost"],
    )
