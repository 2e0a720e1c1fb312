"""OpenTelemetry's GenAI semantic conventions (`gen_ai.*`), as opentelemetry-instrumentation-genai-* emit them.

A span speaks it by `gen_ai.operation.name`: `execute_tool`, `invoke_agent`, `chat` and its kin.
"""

from __future__ import annotations

from tracegrad.schemas.attributes import (
    ERROR_TYPE,
    GEN_AI_AGENT_NAME,
    GEN_AI_OPERATION_NAME,
    GEN_AI_RESPONSE_ID,
    GEN_AI_TOOL_CALL_ID,
    GEN_AI_TOOL_NAME,
    GEN_AI_TOOL_RESULT,
)
from tracegrad.schemas.records.facts import SpanKind

from .dialect import Dialect, Reading
from .judge_tool import ToolJudge
from .read_output import of_messages
from .span_view import SpanView

__all__ = ["OTEL_GENAI"]

_LLM_OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})
_OUTPUT = "gen_ai.output.messages"
_KEYS = (
    _OUTPUT,
    GEN_AI_OPERATION_NAME,
    GEN_AI_AGENT_NAME,
    GEN_AI_RESPONSE_ID,
    GEN_AI_TOOL_NAME,
    GEN_AI_TOOL_CALL_ID,
    GEN_AI_TOOL_RESULT,
    ERROR_TYPE,
)


def _read(span: SpanView, judge: ToolJudge) -> Reading | None:
    operation = span.text(GEN_AI_OPERATION_NAME)
    if operation is None:
        return None
    error_type = span.text(ERROR_TYPE)
    if operation == "execute_tool":
        name = span.text(GEN_AI_TOOL_NAME) or span.name.removeprefix("execute_tool ")
        status, status_from = judge(span, name, span.attributes.get(GEN_AI_TOOL_RESULT))
        return Reading(
            kind=SpanKind.TOOL,
            tool_name=name,
            tool_call_id=span.text(GEN_AI_TOOL_CALL_ID),
            tool_status=status,
            tool_status_from=status_from,
            error_type=error_type,
        )
    if operation == "invoke_agent":
        name = span.text(GEN_AI_AGENT_NAME) or span.name.removeprefix("invoke_agent ")
        return Reading(kind=SpanKind.AGENT, agent_name=name, error_type=error_type)
    if operation in _LLM_OPERATIONS:
        digest, ids = of_messages(span.attributes.get(_OUTPUT))
        return Reading(
            kind=SpanKind.LLM,
            agent_name=span.text(GEN_AI_AGENT_NAME),
            response_id=span.text(GEN_AI_RESPONSE_ID),
            error_type=error_type,
            output_digest=None if span.is_cut else digest,
            requested_tool_call_ids=ids,
        )
    return Reading(kind=SpanKind.OTHER)


OTEL_GENAI = Dialect("otel_genai", frozenset(_KEYS), _read)
