"""OpenLLMetry, or Traceloop (`traceloop.span.kind`): its instrumentations of frameworks, and its decorators.

Its LLM spans speak `otel_genai`; this reads the rest. Measured on 0.62: the outermost chain of LangChain is a
`workflow` and says `invoke_agent` with the chain's name, which is an agent's only where LangChain's metadata repeats
it; CrewAI's tasks say `invoke_agent` too. So a workflow or task overrules that.
"""

from __future__ import annotations

from tracegrad.schemas.attributes import GEN_AI_AGENT_NAME, GEN_AI_TOOL_NAME

from ..reading.agent_hints import LANGCHAIN_HINT
from ..reading.span_view import SpanView
from .dialect import WRAPPER, Dialect, SpanReading, agent, tool

_KIND = "traceloop.span.kind"
_NAME = "traceloop.entity.name"
_OUTPUT = "traceloop.entity.output"


def _read(span: SpanView) -> SpanReading | None:
    kind = span.text(_KIND)
    if kind is None:
        return None
    name = span.text(_NAME)
    if kind == "tool":
        return tool(
            span.text(GEN_AI_TOOL_NAME) or name,
            guess=span.name.removesuffix(".tool"),
            output=span.attributes.get(_OUTPUT),
        )
    if kind == "agent":
        return agent(span.text(GEN_AI_AGENT_NAME) or name, guess=span.name.removesuffix(".agent"))
    if name is not None and name == span.hints.get(LANGCHAIN_HINT):
        return agent(name)
    return WRAPPER


TRACELOOP = Dialect(
    "traceloop", frozenset({_KIND}), frozenset({_NAME, _OUTPUT, GEN_AI_AGENT_NAME, GEN_AI_TOOL_NAME}), _read
)
