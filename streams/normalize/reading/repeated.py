"""The gateway's tool-call ids that a span repeats of what was said before its own answer: of which conversation it is.

In: a captured span. Out: ids that a gateway minted, from the fields that hold nothing but ids: of tool messages and of
assistants' tool calls in `gen_ai.input.messages` and `llm.input_messages.N`, and in the messages of CrewAI's results.
Pure; never raises for odd values. Invariant: free text is never read, so nobody's words can name a conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad.schemas.attributes import GEN_AI_INPUT_MESSAGES
from tracegrad.schemas.ids import key_in
from tracegrad.schemas.otlp.values import plain
from tracegrad.schemas.text import json_value

_FLAT = "llm.input_messages."
_FLAT_IDS = (".tool_call_id", ".tool_call.id")
_OUTPUT = "output.value"
CREWAI = "openinference.instrumentation.crewai"
_WHOLE = frozenset({GEN_AI_INPUT_MESSAGES, _OUTPUT})
_MAX_IDS = 16
"""Of a span, the last: their calls are those that may still be open."""
_MINTED = re.compile(r"\bcall_[0-9A-Za-z]{30,}\b")
"""Whether a text is worth parsing."""
_PARTS = frozenset({"tool_call", "tool_call_response", "tool_use", "tool_result", "function_call"})
_ID_FIELDS = ("id", "tool_call_id", "tool_use_id", "call_id")


def repeated_ids(span: Span, scope: str) -> list[str]:
    """The last of them, each once."""
    said: list[object] = []
    for pair in span.attributes:
        key = pair.key
        if key in _WHOLE:
            read = _of_messages if key == GEN_AI_INPUT_MESSAGES else _of_crew if scope == CREWAI else None
            said += read(_parsed(plain(pair.value))) if read is not None else ()
        elif key.endswith(_FLAT_IDS) and key.startswith(_FLAT):
            said.append(pair.value.string_value)
    if not said:
        return []
    return list(dict.fromkeys(id_ for id_ in said if isinstance(id_, str) and key_in(id_)))[-_MAX_IDS:]


def _parsed(value: object) -> object:
    return None if isinstance(value, str) and not _MINTED.search(value) else json_value(value)


def _of_crew(result: object) -> Iterator[object]:
    """Of a task's result, or of a crew's, which holds those of its tasks."""
    if isinstance(result, dict):
        yield from _of_messages(result.get("messages"))
        tasks = result.get("tasks_output")
        for task in tasks if isinstance(tasks, list) else ():
            if isinstance(task, dict):
                yield from _of_messages(task.get("messages"))


def _of_messages(messages: object) -> Iterator[object]:
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        yield message.get("tool_call_id")
        for calls in (message.get("tool_calls"), message.get("parts"), message.get("content")):
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict) and (calls is message.get("tool_calls") or call.get("type") in _PARTS):
                    yield from (call.get(field) for field in _ID_FIELDS)
