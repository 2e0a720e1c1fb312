"""One piece of feedback as it is posted, as the record that it becomes. Pure.

    {"response_id": "chatcmpl-..", "value": 1, "name": "reward", "reason": "..", "idempotency_key": ".."}

In: an object of a request, the declared names, the run. Out: a Reward of source `feedback`, whose key finds its episode
without an index: ids that our gateways minted carry it. Invariant: exactly one target; a value is finite and in the
range that its name declares. Failure: RequestError with the field at fault.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import (
    RunHash,
    attempt_of,
    canonical_call,
    conversation_key,
    is_rollout,
    key_in,
    parse_attempt_id,
    run_hash_of,
)
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, REWARDS, Reward

from .feedback_names import MAX_NAME_CHARS, RangeConfig

_TARGETS = ("response_id", "tool_call_id", "conversation_id", "trace_id", "rollout_id")
"""What feedback may be about, one of them each time."""
_FIELDS = (*_TARGETS, "attempt_id", "name", "value", "reason", "idempotency_key")
"""What is read of a piece; any other field is refused, for it would be lost."""
_TRACE = re.compile(r"[0-9a-f]{32}")
_MAX_KEY_CHARS, _MAX_ID_CHARS = 200, 1_000
MAX_REASON_CHARS = 2_000
"""Of what its giver wrote."""
_FAULTS = frozenset((*_FIELDS, "label", "error_type"))


class _FeedbackTarget(NamedTuple):
    """Where the target's episode is found, and what of it is meant."""

    key: str
    target: str | None
    """None: all of it."""


def read_feedback(item: Any, names: Mapping[str, RangeConfig], run: RunHash, *, at_ms: int) -> Reward:
    """The record of one posted object; `at_ms` is when it came. Raises RequestError (400; 404 for an id that is none
    of ours)."""
    if not isinstance(item, dict):
        raise RequestError("expected an object for each piece of feedback, got something else")
    if unknown := sorted(str(field)[:80] for field in item.keys() - set(_FIELDS)):
        raise _refusal(unknown[0], f"expected {', '.join(_FIELDS)}, got another field")
    name = _text(item, "name", "reward", MAX_NAME_CHARS)
    place = _place(item)
    rollout, attempt = _attempt(item, place, run)
    return Reward(
        rollout_id=rollout,
        attempt_id=attempt,
        name=name,
        value=_value(item, name, names),
        # An empty comment field is no comment.
        reason=_text(item, "reason", "", MAX_REASON_CHARS) if item.get("reason") != "" else "",
        target=place.target,
        source=FEEDBACK_SOURCE,
        idempotency_key=_text(item, "idempotency_key", "", _MAX_KEY_CHARS) or secrets.token_hex(16),
        at_ms=at_ms,
        conversation_key=None if rollout else place.key,
    )


def fault_of(error: RequestError) -> str:
    """The field at fault, as it is counted; `form`: none alone."""
    return error.param if error.param in _FAULTS else "form"


def reward_record(reward: Reward) -> tuple[bytes, bytes]:
    """Key and value of its record on `rewards`."""
    key = episode_key(reward.rollout_id or None, None, conversation=reward.conversation_key)
    return key, REWARDS.encode(reward)


def _refusal(field: str, message: str, status: int = 400) -> RequestError:
    return RequestError(f"{field}: {message}", status=status, param=field)


def _text(item: dict[str, Any], field: str, default: str, most: int) -> str:
    given = item.get(field)
    if given is None:
        return default
    if not isinstance(given, str) or not 0 < len(given) <= most:
        raise _refusal(field, f"expected a text of 1 to {most} characters, got something else")
    return given


def _value(item: dict[str, Any], name: str, names: Mapping[str, RangeConfig]) -> float:
    if name not in names:
        declared = ", ".join(sorted(names))
        raise _refusal("name", f"expected one that [feedback.names] declares ({declared}), got another")
    limits, given = names[name], item.get("value")
    # A number beyond a float's compares well, and a bool is what thumbs send.
    if not isinstance(given, int | float) or not limits.low <= given <= limits.high:
        raise _refusal("value", f"expected a number in [{limits.low:g}, {limits.high:g}] of {name}, got another")
    return float(given)


def _place(item: dict[str, Any]) -> _FeedbackTarget:
    named = [field for field in _TARGETS if item.get(field) is not None]
    if len(named) != 1:
        got = f"{len(named)} of them" if named else "none"
        raise RequestError(f"expected one of {', '.join(_TARGETS)}, got {got}")
    field = named[0]
    id_ = _text(item, field, "", _MAX_ID_CHARS)
    match field:
        case "response_id":
            call, key = canonical_call(id_), key_in(id_)
            if call is None or key is None:
                raise _foreign(field, "an answer")
            return _FeedbackTarget(key, call)
        case "tool_call_id":
            key = key_in(id_)
            if key is None or canonical_call(id_) is not None:
                raise _foreign(field, "a tool call")
            return _FeedbackTarget(key, id_)
        case "conversation_id":
            return _FeedbackTarget(conversation_key(id_), None)
        case _:
            num_digits, is_id = (32, _TRACE.fullmatch(id_)) if field == "trace_id" else (28, is_rollout(id_))
            if not is_id:
                raise _refusal(field, f"expected {num_digits} hex digits, got something else")
            return _FeedbackTarget(id_, None)


def _foreign(field: str, what: str) -> RequestError:
    return _refusal(field, f"expected the id of {what} as our LLM gateway gave it, got another", 404)


def _attempt(item: dict[str, Any], place: _FeedbackTarget, run: RunHash) -> tuple[str, str]:
    """The runner's attempt that it is about, empty texts where no runner started it."""
    given = item.get("attempt_id")
    if found := attempt_of(place.key, (run,)):
        if given is not None and given != found[1]:
            raise _refusal("attempt_id", f"expected {found[1]}, which the trace id names, got another")
        return found
    if not is_rollout(place.key):
        if given is not None:
            raise _refusal("attempt_id", "expected one beside what is of a rollout only")
        return "", ""
    if run_hash_of(place.key) != run:
        raise RequestError("expected a rollout of this run, got another's", status=404)
    try:
        return place.key, parse_attempt_id(given or "")
    except (TypeError, ValueError):
        raise _refusal(
            "attempt_id", "expected the attempt (4 hex digits) beside what is of a rollout; or give its trace_id alone"
        ) from None
