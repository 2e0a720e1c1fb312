"""The ids of a response and of its output items: each names the answer, and which piece of it. Pure.

In: call ids. Out: the ids that clients see, and back. A message's id is the answer's own under another prefix; those of
thoughts and function calls put a prefix before the response's.
"""

from __future__ import annotations

import re

from tracegrad.schemas.ids import CallId, WirePrefix, canonical_call, wire_id

_ITEM = re.compile(r"(?:(?P<kind>rs|fc(?P<index>\d{1,4}))_)?(?P<answer>(?:msg|resp)_\w+)")


def response_id(call: CallId) -> str:
    """Of the whole answer."""
    return wire_id(call, WirePrefix.RESPONSE)


def message_id(call: CallId) -> str:
    """Of what it says."""
    return wire_id(call, WirePrefix.MESSAGE)


def reasoning_id(call: CallId) -> str:
    """Of what it thought."""
    return f"rs_{response_id(call)}"


def function_call_id(call: CallId, index: int) -> str:
    """Of its index-th function call."""
    return f"fc{index}_{response_id(call)}"


def origin_of(item_id: str) -> tuple[CallId, int | str] | None:
    """The answer that an item is of, and `message`, `reasoning` or a function call's index; None: no item of ours."""
    match = _ITEM.fullmatch(item_id)
    call = canonical_call(match["answer"]) if match else None
    if match is None or call is None:
        return None
    if match["index"] is not None:
        return call, int(match["index"])
    return call, "reasoning" if match["kind"] else "message"
