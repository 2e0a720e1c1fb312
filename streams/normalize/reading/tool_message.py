"""What a framework says of a tool's execution within its output: LangChain's ToolMessage, AgentScope's ToolResponse.

In: a tool's output, as a value or its JSON. Out: ToolMessage. Pure; never raises for odd values. Invariant: of several
messages (a command that answers two calls) none is read, for the span is of one.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any, NamedTuple

from tracegrad.schemas.text import json_value

from .span_view import MAX_TEXT

_CALL_ID = "tool_call_id"
_WRAPPERS = ("data", "kwargs", "output", "outputs", "update", "messages")
"""Keys under which tracers and LangChain's own serialisation keep it."""
_MAX_DEPTH = 5
_AGENTSCOPE = re.compile(r'"?Tool(?:Response|Chunk|ResultBlock)\(')
_STATE = re.compile(r"\bstate=<ToolResultState\.([A-Z]+):")
_MAX_TAIL = 2000
"""AgentScope's response is Python's own text of the object; its state stands behind the content."""
_MAX_LITERAL = 10_000
"""Characters of one that Python's parser reads."""


class ToolMessage(NamedTuple):
    """What a tool's output says of its execution."""

    call_id: str | None
    status: object
    """`success`, `error`, or another word of the framework's."""
    content: object
    """What the tool returned; the whole output, where it holds no such message."""


def tool_message(output: object) -> ToolMessage:
    """The message in an output, else the output as the content."""
    if isinstance(output, str) and _AGENTSCOPE.match(output):
        states = _STATE.findall(output[-_MAX_TAIL:])
        return ToolMessage(None, states[-1] if states else None, _content_of(output) or output)
    if not isinstance(output, dict) and not (isinstance(output, str) and output[:1] == "{" and _CALL_ID in output):
        return ToolMessage(None, None, output)
    message = _find(json_value(output), 0)
    if message is None:
        return ToolMessage(None, None, output)
    call_id, content = message[_CALL_ID], message.get("content")
    is_id = isinstance(call_id, str) and call_id
    return ToolMessage(
        call_id[:MAX_TEXT] if is_id else None, message.get("status"), output if content is None else content
    )


def _content_of(response: str) -> object:
    """Of a response whose text is that of plain values, as AgentScope 1's is; None of any other."""
    told = json_value(response) if response[:1] == '"' else response
    if not isinstance(told, str) or len(told) > _MAX_LITERAL or "\x00" in told:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # a wrong escape in somebody's text
            made = ast.parse(told, mode="eval").body
            fields = {field.arg: field.value for field in getattr(made, "keywords", ())}
            return ast.literal_eval(fields["content"])
    except (KeyError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _find(value: object, depth: int) -> dict[str, Any] | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return None
    found = (_find(value[key], depth + 1) for key in _WRAPPERS if key in value)
    return next((inner for inner in found if inner is not None), value if _CALL_ID in value else None)
