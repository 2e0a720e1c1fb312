"""OpenLLMetry, or Traceloop (`traceloop.span.kind`): its instrumentations of frameworks, and its decorators.

Its LLM spans speak `otel_genai`; this reads the rest. Measured on 0.62: the outermost chain of LangChain is a
`workflow` and says `invoke_agent` with the chain's name, which is an agent's only where LangChain's metadata repeats
it; CrewAI's tasks say `invoke_agent` too. So a workflow or task overrules that.
"""

from __future__ import annotations

from tracegrad.schemas.attributes import GEN_AI_AGENT_NAME, GEN_AI_TOOL_NAME
from tracegrad.schemas.records.facts import SpanKind

from ..reading.agent_hints import LANGCHAIN_HINT
from ..reading.span_view import SpanView
from ..reading.tool_message import tool_message
from .dialect import WRAPPER, Dialect, Reading, agent

__all__ = ["TRACELOOP"]

_KIND = "traceloop.span.kind"
_NAME = "traceloop.entity.name"
_OUTPUT = "traceloop.entity.output"


def _read(span: SpanView) -> Reading | None:
    kind = span.text(_KIND)
    if kind is None:
        return None
    name = span.text(_NAME)
    if kind == "tool":
        return _read_tool(span, name)
    if kind == "agent":
        return agent(span.text(GEN_AI_AGENT_NAME) or name, guess=span.name.removesuffix(".agent"))
    if name is not None and name == span.hints.get(LANGCHAIN_HINT):
        return agent(name)
    return WRAPPER


def _read_tool(span: SpanView, name: str | None) -> Reading:
    message = tool_message(span.attributes.get(_OUTPUT))
    said = span.text(GEN_AI_TOOL_NAME) or name
    return Reading(
        kind=SpanKind.TOOL,
        is_guess=said is None,
        tool_name=said or span.name.removesuffix(".tool"),
        tool_call_id=message.call_id,
        results=() if message.content is None else (message.content,),
        declared=() if message.status is None else (message.status,),
    )


TRACELOOP = Dialect(
    "traceloop", frozenset({_KIND}), frozenset({_NAME, _OUTPUT, GEN_AI_AGENT_NAME, GEN_AI_TOOL_NAME}), _read
)
