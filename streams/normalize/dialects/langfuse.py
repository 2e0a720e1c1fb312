"""Langfuse's SDK (`langfuse.observation.type`): generations, tools and agents, named by their spans.

The answer's id stands nowhere but in what the user passes as output; LangChain's tool messages are read from it. Of the
types, `span` and `chain` say nothing: another dialect on the span may.
"""

from __future__ import annotations

from ..reading.agent_hints import LANGCHAIN_HINT, agent_of_span, name_in_answers
from ..reading.span_view import SpanView
from .dialect import OTHER, Dialect, SpanReading, agent, answer, tool

_TYPE = "langfuse.observation.type"
_OUTPUT = "langfuse.observation.output"
_LEVEL = "langfuse.observation.level"


def _read(span: SpanView) -> SpanReading | None:
    kind = (span.text(_TYPE) or "").lower()
    if not kind:
        return None
    if kind == "generation":
        return answer(span.attributes.get(_OUTPUT))
    if kind == "tool":
        return tool(None, guess=span.name, output=span.attributes.get(_OUTPUT), status=span.text(_LEVEL))
    named_by_langchain = span.hints.get(LANGCHAIN_HINT)
    if named_by_langchain is not None:
        return agent(named_by_langchain) if span.name == named_by_langchain else OTHER
    if kind != "agent":
        return OTHER
    return agent(name_in_answers(span.attributes.get(_OUTPUT)), guess=agent_of_span(span.name))


LANGFUSE = Dialect("langfuse", frozenset({_TYPE}), frozenset({_OUTPUT, _LEVEL}), _read)
