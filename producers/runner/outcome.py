"""How an attempt ended, as the agent's host or process tells.

In: what user code's process says. Out: an Outcome. Invariant: nothing that it says makes an attempt `aborted`, which is
tried again and left out: only what our own processes say does (`attempt.py`). Failure: what is no message is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec

from tracegrad.schemas.credentials import Holder
from tracegrad.schemas.records.rollouts import MAX_OUTPUT, Reward, RolloutRequest, RolloutState
from tracegrad.schemas.text import decode_json

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
"""Of spans; a record could not hold every other, and who sent it would be left out."""
_MAX_DEPTH = 100
"""Of an output: far below where Python's own JSON gives up, so that the grader gets whatever is let through."""


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
    is_host_lost: bool = False
    """Its host ended while it ran there, and nobody knows by whom: not by it if it was waiting for an answer."""
    calls_closed: bool = False
    is_gateway_replaced: bool = False
    """Aborted since another process of the LLM gateway answers than the one at which it began."""
    rewards: tuple[Reward, ...] = ()


Begin = Callable[[Holder | None], Awaitable[None]]
"""Tells the gateway, before the agent starts, in which agent host it runs. Raises UnavailableError."""
RunAgent = Callable[[RolloutRequest, str, Begin], Awaitable[Outcome]]
"""A place where an agent can run now: a request and its attempt -> how that ended; UnavailableError is `Begin`'s."""


class HostMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent host says of one of its rollouts."""

    op: Literal["result", "blocks", "ends"]
    """It has ended; it blocks the event loop; it is about to end the host's process."""
    episode: str
    """Empty where the host does not know which one."""
    state: Literal["succeeded", "failed", "truncated"] = "failed"
    output: str = "null"
    """JSON."""
    error: str | None = None
    duration_s: float = 0.0
    spans_exported: _Number = 0
    spans_lost: _Number = 0
    hung: bool = False
    """Its thread or task does not end."""
    blocks: bool = False
    """It blocks the event loop."""


def from_host(message: HostMessage) -> Outcome:
    """The result that an agent host reported."""
    state, error, output = RolloutState(message.state), message.error, None
    try:
        output = decode_json(message.output)
        if _is_deeper(output, _MAX_DEPTH):
            raise ValueError(f"expected an output of at most {_MAX_DEPTH} levels, got more")
    except (ValueError, RecursionError) as failure:
        state, output = RolloutState.FAILED, None
        error = f"its output cannot be used: {type(failure).__name__}: {failure}"[:500]
    return Outcome(
        state=state,
        output=output,
        error=error,
        duration_s=message.duration_s,
        spans_exported=message.spans_exported,
        spans_lost=message.spans_lost,
    )


def as_told(output: Any) -> tuple[str | None, str | None]:
    """(what an agent returned as JSON, None) for the log, so that it can be graded again; of more than MAX_OUTPUT bytes
    (None, its sha256). (None, None) of what no JSON can hold."""
    try:
        text = json.dumps(output, ensure_ascii=False, separators=(",", ":"))
        data = text.encode()
    except (ValueError, TypeError, RecursionError):
        return None, None
    return (text, None) if len(data) <= MAX_OUTPUT else (None, hashlib.sha256(data).hexdigest())


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        nested = [item for item in level if isinstance(item, list | dict)]
        if not nested:
            return False
        level = [inner for item in nested for inner in (item.values() if isinstance(item, dict) else item)]
    return True
