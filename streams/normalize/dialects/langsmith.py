"""LangSmith's OpenTelemetry export (`langsmith.span.kind`, the type of a LangChain run).

It says `gen_ai.operation.name` besides, but `chat` of a prompt template too, so this overrules it. The answer and the
tool's message stand in `gen_ai.completion`, as LangChain serialises them; a run is an agent's when LangChain's metadata
calls the agent as the run is called.
"""

from __future__ import annotations

from tracegrad.schemas.attributes import GEN_AI_RESPONSE_ID, GEN_AI_TOOL_CALL_ID, GEN_AI_TOOL_NAME
from tracegrad.schemas.records.facts import SpanKind

from ..reading.agent_hints import LANGCHAIN_HINT
from ..reading.read_output import minted_in, of_response
from ..reading.span_view import SpanView
from ..reading.tool_message import tool_message
from .dialect import WRAPPER, Dialect, Reading, agent

__all__ = ["LANGSMITH"]

_KIND = "langsmith.span.kind"
_COMPLETION = "gen_ai.completion"


def _read(span: SpanView) -> Reading | None:
    kind = span.text(_KIND)
    if kind is None:
        return None
    if kind == "llm":
        completion = span.attributes.get(_COMPLETION)
        digest, asked = of_response(completion)
        return Reading(
            kind=SpanKind.LLM,
            overrules=True,
            response_id=minted_in(completion) or span.text(GEN_AI_RESPONSE_ID),
            output_digest=digest,
            requested_tool_call_ids=asked,
        )
    if kind == "tool":
        return _read_tool(span)
    return agent(span.name) if kind == "chain" and span.name == span.hints.get(LANGCHAIN_HINT) else WRAPPER


def _read_tool(span: SpanView) -> Reading:
    message = tool_message(span.attributes.get(_COMPLETION))
    name = span.text(GEN_AI_TOOL_NAME)
    return Reading(
        kind=SpanKind.TOOL,
        is_guess=name is None,
        tool_name=name or span.name,
        tool_call_id=message.call_id or span.text(GEN_AI_TOOL_CALL_ID),
        results=() if message.content is None else (message.content,),
        declared=() if message.status is None else (message.status,),
    )


_KEYS = frozenset({_COMPLETION, GEN_AI_RESPONSE_ID, GEN_AI_TOOL_CALL_ID, GEN_AI_TOOL_NAME})
LANGSMITH = Dialect("langsmith", frozenset({_KIND}), _KEYS, _read)
