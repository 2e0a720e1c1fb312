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
from tracegrad.schemas.records.facts import SpanKind, ToolStatus

from .dialect import Reading, SpanView, ToolErrorText, judge_tool

__all__ = ["OtelGenAi"]

_LLM_OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})


class OtelGenAi:
    """The dialect `otel_genai`."""

    name = "otel_genai"
    keys = frozenset(
        {
            GEN_AI_OPERATION_NAME,
            GEN_AI_AGENT_NAME,
            GEN_AI_RESPONSE_ID,
            GEN_AI_TOOL_NAME,
            GEN_AI_TOOL_CALL_ID,
            GEN_AI_TOOL_RESULT,
            ERROR_TYPE,
        }
    )

    def read(self, span: SpanView, is_error: ToolErrorText) -> Reading | None:
        """As Dialect.read."""
        operation = span.text(GEN_AI_OPERATION_NAME)
        if operation is None:
            return None
        error_type = span.text(ERROR_TYPE)
        if operation == "execute_tool":
            return self._tool(span, error_type, is_error)
        if operation == "invoke_agent":
            name = span.text(GEN_AI_AGENT_NAME) or span.name.removeprefix("invoke_agent ")
            return Reading(kind=SpanKind.AGENT, agent_name=name, error_type=error_type)
        if operation in _LLM_OPERATIONS:
            return Reading(
                kind=SpanKind.LLM,
                agent_name=span.text(GEN_AI_AGENT_NAME),
                response_id=span.text(GEN_AI_RESPONSE_ID),
                error_type=error_type,
            )
        return Reading(kind=SpanKind.OTHER)

    def _tool(self, span: SpanView, error_type: str | None, is_error: ToolErrorText) -> Reading:
        result = span.attributes.get(GEN_AI_TOOL_RESULT)
        status, status_from = judge_tool(
            span,
            error_type=error_type,
            declared=ToolStatus.UNKNOWN,
            result=result if isinstance(result, str) else None,
            is_error=is_error,
        )
        return Reading(
            kind=SpanKind.TOOL,
            tool_name=span.text(GEN_AI_TOOL_NAME) or span.name.removeprefix("execute_tool "),
            tool_call_id=span.text(GEN_AI_TOOL_CALL_ID),
            tool_status=status,
            tool_status_from=status_from,
            error_type=error_type,
        )
