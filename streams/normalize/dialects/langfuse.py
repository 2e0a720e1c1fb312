"""Langfuse's SDK (`langfuse.observation.type`): generations, tools and agents, named by their spans.

The answer's id stands nowhere but in what the user passes as output; LangChain's tool messages are read from it. Of the
types, `span` and `chain` say nothing: another dialect on the span may.
"""

from __future__ import annotations

from tracegrad.schemas.records.facts import SpanKind

from ..reading.agent_hints import LANGCHAIN_HINT, agent_of_span, name_in_answers
from ..reading.read_output import minted_in, of_response
from ..reading.span_view import SpanView
from ..reading.tool_message import tool_message
from .dialect import OTHER, Dialect, Reading, agent

__all__ = ["LANGFUSE"]

_TYPE = "langfuse.observation.type"
_OUTPUT = "langfuse.observation.output"
_LEVEL = "langfuse.observation.level"


def _read(span: SpanView) -> Reading | None:
    kind = (span.text(_TYPE) or "").lower()
    if not kind:
        return None
    if kind == "generation":
        output = span.attributes.get(_OUTPUT)
        digest, asked = of_response(output)
        return Reading(
            kind=SpanKind.LLM, response_id=minted_in(output), output_digest=digest, requested_tool_call_ids=asked
        )
    if kind == "tool":
        return _read_tool(span)
    named_by_langchain = span.hints.get(LANGCHAIN_HINT)
    if named_by_langchain is not None:
        return agent(named_by_langchain) if span.name == named_by_langchain else OTHER
    if kind != "agent":
        return OTHER
    return agent(name_in_answers(span.attributes.get(_OUTPUT)), guess=agent_of_span(span.name))


def _read_tool(span: SpanView) -> Reading:
    message = tool_message(span.attributes.get(_OUTPUT))
    return Reading(
        kind=SpanKind.TOOL,
        is_guess=True,
        tool_name=span.name,
        tool_call_id=message.call_id,
        results=() if message.content is None else (message.content,),
        declared=tuple(said for said in (message.status, span.text(_LEVEL)) if said is not None),
    )


LANGFUSE = Dialect("langfuse", frozenset({_TYPE}), frozenset({_OUTPUT, _LEVEL}), _read)
