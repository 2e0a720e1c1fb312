"""OpenTelemetry's GenAI conventions, of spans, of their events and of log events.

The newest keep messages in `gen_ai.input.messages` and its like, on the span or on the event
`gen_ai.client.inference.operation.details` (semantic-conventions-genai, docs/gen-ai/gen-ai-spans.md); before 1.37 each
message was an event, `gen_ai.user.message` and its like, the answer `gen_ai.choice`; older still are `gen_ai.prompt.N`
and `gen_ai.completion.N`, which AgentOps and older releases of OpenLLMetry write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tracegrad.schemas.attributes import GEN_AI_INPUT_MESSAGES, GEN_AI_OUTPUT_MESSAGES, GEN_AI_RESPONSE_ID
from tracegrad.schemas.ids import WirePrefix
from tracegrad.schemas.text import json_value

from ..reading.span_view import SpanView
from .call_content import CallBodies, Convention, flat_list

_REQUEST, _FINISH = "gen_ai.request.", "gen_ai.response.finish_reason"
_HELD, _PREVIOUS = (WirePrefix.RESPONSE, "conv_"), "gen_ai.request.previous_response.id"
"""How a conversation is named of which OpenAI holds the beginning: Agent Framework goes on by the last answer's id."""
_STREAMS = ("gen_ai.request.stream", "gen_ai.is_streaming", "gen_ai.request.streaming", "llm.is_streaming")
_AGENTS, _ADK = "opentelemetry.instrumentation.openai_agents", "gcp.vertex.agent"
"""OpenLLMetry's has a message for each item of a Responses answer; ADK, each tool's result as an object."""
_PROMPT, _COMPLETION, _FUNCTIONS = "gen_ai.prompt.", "gen_ai.completion.", "request.functions."
DEFINITIONS = "gen_ai.tool.definitions"
DETAILS, CHOICE = "gen_ai.client.inference.operation.details", "gen_ai.choice"
MESSAGE_EVENTS = frozenset(
    {DETAILS, CHOICE, *(f"gen_ai.{role}.message" for role in ("system", "user", "assistant", "tool"))}
)
"""Events that tell of a call, of a span or of the log."""
_FIELDS = ("content", "message", "tool_calls", "index", "finish_reason", "id", "role", "name")
"""Of those that are one message."""


def _read(span: SpanView) -> Iterator[CallBodies]:
    events = [(name, _decoded(told)) for name, told in span.message_events]
    # Strands 1.62 has an event for the instructions, one for the messages and one for the answer.
    parts = (*(told for name, told in events if name == DETAILS), span.attributes)
    yield _newest({key: told for part in parts for key, told in part.items()}, span.scope)
    yield bodies_of_events([(name, told) for name, told in events if name != DETAILS], span.scope)
    functions = flat_list(span, f"gen_ai.{_FUNCTIONS}") or flat_list(span, f"llm.{_FUNCTIONS}")
    choices = [_with_parts(item) for item in flat_list(span, _COMPLETION)]
    prompt = [_with_parts(item) for item in flat_list(span, _PROMPT)]
    yield CallBodies({"messages": prompt, "tools": functions}, {"choices": choices} if choices else None)


def _newest(told: Mapping[str, Any], scope: str) -> CallBodies:
    output = told.get(GEN_AI_OUTPUT_MESSAGES)
    answers = json_value(_as_sent(output, scope))
    response = {
        "id": told.get(GEN_AI_RESPONSE_ID),
        "model": told.get("gen_ai.response.model"),
        "choices": answers if isinstance(answers, list) else [] if output is None else [None],
        "stop_reason": told.get(f"{_FINISH}s", told.get(_FINISH)),
    }
    request = {
        **{key.removeprefix(_REQUEST): value for key, value in told.items() if key.startswith(_REQUEST)},
        "conversation": str(told.get("gen_ai.conversation.id")).startswith(_HELD) or told.get(_PREVIOUS),
        "system": told.get("gen_ai.system_instructions"),
        "messages": _as_sent(told.get(GEN_AI_INPUT_MESSAGES), scope),
        "tools": told.get(DEFINITIONS),
        "stream": any(told.get(key) in (True, "True") for key in _STREAMS),
    }
    return CallBodies(request, response)


def _as_sent(told: object, scope: str) -> object:
    """Messages as the model's API has them, where a teller writes them otherwise."""
    items = json_value(told)
    if scope not in (_AGENTS, _ADK) or not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return told
    if scope == _AGENTS:
        return [{**item, "type": "message", "content": item.get("parts")} for item in items]
    return [{**item, "parts": _with_texts(item.get("parts"))} for item in items]


def _with_texts(parts: Any) -> object:
    """A tool's result as ADK's LiteLlm sends it, in a message's parts."""
    return [_with_text(part) for part in parts] if isinstance(parts, list) else parts


def _with_text(part: Any) -> object:
    returned = part.get("response") if isinstance(part, dict) else None
    return {**part, "response": json.dumps(returned, ensure_ascii=False)} if isinstance(returned, dict) else part


def bodies_of_events(events: list[tuple[str, Mapping[str, Any]]], scope: str) -> CallBodies:
    """Of a call's events, of a span or of the log: the whole of it, or a message each."""
    if events and events[0][0] == DETAILS:
        return _newest(events[0][1], scope)
    said = [(name, _message(name, told)) for name, told in events]
    choices = [message for name, message in said if name == CHOICE]
    prompt = [message for name, message in said if name != CHOICE]
    return CallBodies({"messages": prompt}, {"choices": choices} if choices else None)


def _message(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: told[key] for key in _FIELDS if told.get(key) is not None}
    said = fields.pop("message", fields.get("content"))
    role = "assistant" if name == CHOICE else name.split(".")[1]
    # Hidden content leaves an event that tells nothing: a text that is not there.
    content = said if said is not None or "tool_calls" in fields else [{"type": "text"}]
    return {"role": role, **fields, **(content if isinstance(content, dict) else {"content": content})}


def _decoded(event: Mapping[str, Any]) -> dict[str, Any]:
    """A span event's attributes, whose values are JSON where they are no texts."""
    return {key: told if isinstance(told := json_value(value), list | dict) else value for key, value in event.items()}


def _with_parts(item: Any) -> object:
    """A flat message; its content is JSON where it has parts."""
    content = item.get("content") if isinstance(item, dict) else None
    parts = json_value(content) if isinstance(content, str) and content.startswith('[{"type"') else None
    return {**item, "content": parts} if parts else item


GENAI = Convention("otel_genai", ("gen_ai.", f"llm.{_FUNCTIONS}", _STREAMS[-1], *_FIELDS), _read)
