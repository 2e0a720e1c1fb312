"""LangSmith's OpenTelemetry export (`langsmith.span.kind`, the type of a LangChain run).

It says `gen_ai.operation.name` besides, but `chat` of a prompt template too, so this overrules it. The answer and the
tool's message stand in `gen_ai.completion`, as LangChain serialises them; a run is an agent's when LangChain's metadata
calls the agent as the run is called.
"""

from __future__ import annotations

from tracegrad.schemas.attributes import GEN_AI_RESPONSE_ID, GEN_AI_TOOL_CALL_ID, GEN_AI_TOOL_NAME

from ..reading.agent_hints import LANGCHAIN_HINT
from ..reading.span_view import SpanView
from .dialect import WRAPPER, Dialect, SpanReading, agent, answer, tool

_KIND = "langsmith.span.kind"
_COMPLETION = "gen_ai.completion"


def _read(span: SpanView) -> SpanReading | None:
    kind = span.text(_KIND)
    if kind is None:
        return None
    if kind == "llm":
        return answer(span.attributes.get(_COMPLETION), span.text(GEN_AI_RESPONSE_ID), overrules=True)
    if kind == "tool":
        return tool(
            span.text(GEN_AI_TOOL_NAME),
            guess=span.name,
            output=span.attributes.get(_COMPLETION),
            call_id=span.text(GEN_AI_TOOL_CALL_ID),
        )
    return agent(span.name) if kind == "chain" and span.name == span.hints.get(LANGCHAIN_HINT) else WRAPPER


_KEYS = frozenset({_COMPLETION, GEN_AI_RESPONSE_ID, GEN_AI_TOOL_CALL_ID, GEN_AI_TOOL_NAME})
LANGSMITH = Dialect("langsmith", frozenset({_KIND}), _KEYS, _read)
