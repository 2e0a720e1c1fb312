"""Vercel's AI SDK 5 and 6 (`ai.operationId`); 7 speaks `otel_genai`.

`ai.generateText` is the whole of an agent's run, `.doGenerate` within it one call of the model, `ai.toolCall` an
execution. An agent's name is the `functionId` that its telemetry was given; without one it is nobody's.
"""

from __future__ import annotations

from tracegrad.schemas.attributes import GEN_AI_RESPONSE_ID
from tracegrad.schemas.records.facts import SpanKind
from tracegrad.schemas.text import json_value

from ..reading.read_output import of_response
from ..reading.span_view import SpanView
from .dialect import OTHER, Dialect, SpanReading, agent, execution

_OPERATION = "ai.operationId"
_FUNCTION = "ai.telemetry.functionId"
_RESPONSE_IDS = ("ai.response.id", GEN_AI_RESPONSE_ID)
_TEXTS = ("ai.response.text", "ai.response.object")
_CALLS = "ai.response.toolCalls"
_TOOL = "ai.toolCall.name"
_TOOL_CALL = "ai.toolCall.id"
_RESULT = "ai.toolCall.result"
_RUNS = frozenset({"ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject"})


def _read(span: SpanView) -> SpanReading | None:
    operation = span.text(_OPERATION)
    if operation is None:
        return None
    if operation == "ai.toolCall":
        return execution(span.text(_TOOL), span.text(_TOOL_CALL), span.attributes.get(_RESULT))
    if operation.endswith((".doGenerate", ".doStream")):
        said = {"content": span.value(*_TEXTS), "tool_calls": json_value(span.attributes.get(_CALLS))}
        name, response_id = span.text(_FUNCTION), span.text(*_RESPONSE_IDS)
        return SpanReading(kind=SpanKind.LLM, agent_name=name, response_id=response_id, output=of_response(said))
    return agent(span.text(_FUNCTION)) if operation in _RUNS else OTHER


_KEYS = frozenset({_FUNCTION, *_RESPONSE_IDS, *_TEXTS, _CALLS, _TOOL, _TOOL_CALL, _RESULT})
VERCEL_AI = Dialect("vercel_ai", frozenset({_OPERATION}), _KEYS, _read)
