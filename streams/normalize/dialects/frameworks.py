"""Frameworks that emit spans of their own: pydantic-ai before version 3 of its format, Google's ADK, Claude Code.

Where they also speak `otel_genai`, this adds what stands only in their own attributes: pydantic-ai's results, ADK's
tool responses and the agents of its older releases, Claude Code's tools.
"""

from __future__ import annotations

import re

from tracegrad.schemas.attributes import GEN_AI_AGENT_NAME, GEN_AI_TOOL_CALL_ID, GEN_AI_TOOL_NAME
from tracegrad.schemas.records.facts import SpanKind
from tracegrad.schemas.text import json_value

from ..reading.read_output import of_response
from ..reading.span_view import SpanView
from .dialect import OTHER, WRAPPER, Dialect, SpanReading, agent, execution

_AGENT = "agent_name"
_TOOL_RESULT = "tool_response"
_TOOL_ARGUMENTS = "tool_arguments"
_ADK_TOOL = "gcp.vertex.agent.tool_response"
_ADK_ANSWER = "gcp.vertex.agent.llm_response"
_ADK_AGENT = re.compile(r"agent_run \[(.{1,200})\]")
_ADK_MERGED = "execute_tool (merged)"
_ADK_MARKS = frozenset({_ADK_TOOL, _ADK_ANSWER})
_ADK_KEYS = frozenset({GEN_AI_TOOL_NAME, GEN_AI_TOOL_CALL_ID})
_CLAUDE = "claude_code."
_CLAUDE_TOOL, _CLAUDE_CALL, _CLAUDE_OUTPUT = "tool_name", "tool_use_id", "tool.output"
_CLAUDE_RESULTS = ("output", "content")
_CLAUDE_KEYS = frozenset({_CLAUDE_TOOL, _CLAUDE_CALL, GEN_AI_TOOL_CALL_ID})


def _read_pydantic_ai(span: SpanView) -> SpanReading:
    if span.name == "agent run":
        return agent(span.text(GEN_AI_AGENT_NAME, _AGENT))
    name, result = span.text(GEN_AI_TOOL_NAME), span.attributes.get(_TOOL_RESULT)
    if name is None:
        return OTHER
    return execution(name, span.text(GEN_AI_TOOL_CALL_ID), result)


def _read_adk(span: SpanView) -> SpanReading | None:
    named = _ADK_AGENT.fullmatch(span.name)
    if named is not None:
        return agent(named[1])
    if span.name == _ADK_MERGED:
        return WRAPPER  # its parts have spans of their own
    if _ADK_TOOL in span.attributes and span.name.startswith("execute_tool "):
        name, call_id = span.text(GEN_AI_TOOL_NAME), span.text(GEN_AI_TOOL_CALL_ID)
        return execution(name, call_id, span.attributes[_ADK_TOOL], guess=span.name.removeprefix("execute_tool "))
    if _ADK_ANSWER in span.attributes and span.name.startswith(("call_llm", "generate_content")):
        answer = json_value(span.attributes[_ADK_ANSWER])
        content = answer.get("content") if isinstance(answer, dict) else None
        return SpanReading(kind=SpanKind.LLM, output=of_response(content))
    return None


def _read_claude_code(span: SpanView) -> SpanReading:
    kind = span.name.removeprefix(_CLAUDE)
    if kind == "llm_request":
        return SpanReading(kind=SpanKind.LLM)
    if kind != "tool":
        return WRAPPER  # a tool's span has parts: the wait for a permission, the execution
    output = span.events.get(_CLAUDE_OUTPUT, {})
    return SpanReading(
        kind=SpanKind.TOOL,
        tool_name=span.text(_CLAUDE_TOOL),
        tool_call_id=span.text(_CLAUDE_CALL, GEN_AI_TOOL_CALL_ID),
        results=tuple(output[key] for key in _CLAUDE_RESULTS if key in output),
    )


_PYDANTIC_MARKS = frozenset({_TOOL_RESULT, _TOOL_ARGUMENTS})
_PYDANTIC_SPANS = ("agent run", "running tool", "running output function")
_PYDANTIC_KEYS = frozenset({_AGENT, GEN_AI_AGENT_NAME, GEN_AI_TOOL_NAME, GEN_AI_TOOL_CALL_ID})
PYDANTIC_AI = Dialect("pydantic_ai", _PYDANTIC_MARKS, _PYDANTIC_KEYS, _read_pydantic_ai, names=_PYDANTIC_SPANS)
ADK = Dialect("adk", _ADK_MARKS, _ADK_KEYS, _read_adk, names=("agent_run [", _ADK_MERGED))
CLAUDE_CODE = Dialect(
    "claude_code",
    frozenset(),
    _CLAUDE_KEYS,
    _read_claude_code,
    names=(_CLAUDE,),
    events={_CLAUDE_OUTPUT: frozenset(_CLAUDE_RESULTS)},
)
