"""What OpenInference's spans of LlamaIndex and CrewAI tell only by the input of a step: whose it is, and which call it
answers.

LlamaIndex names no agent in an attribute, but its step `run_agent_step` gets an event that ends with the agent's name,
and `call_tool` one that ends with the tool-call id (the tool's own span, within it, has none). CrewAI's tool for
delegation is the coworker at work, who has no span of its own. Recorded with llama-index-core 0.14, crewai 1.15.
"""

from __future__ import annotations

import re

from tracegrad.schemas.records.facts import SpanKind
from tracegrad.schemas.text import json_value

from ..reading.agent_hints import agent_of_span
from ..reading.span_view import MAX_TEXT, SpanView
from .dialect import SpanReading, agent

INPUT = "input.value"
_SCOPE = "openinference.instrumentation.llama_index"
_DELEGATES = frozenset({"Delegate work to coworker", "Ask question to coworker"})
_MAX_TAIL = 1000
# Words of the user or the model stand before, within quotes of their own; the end is LlamaIndex's.
_AGENT = re.compile(r"""\bcurrent_agent_name='([^'\\"]{1,200})'\)"\}$""")
_TOOL = re.compile(r"""\btool_id='([^'\\"]{1,200})'\)"\}$""")
_TOOL_NAME = re.compile(r"""ev": "ToolCall\(tool_name='([^'\\"]{1,200})',""")


def step_of_llama_index(span: SpanView) -> SpanReading | None:
    """An agent's step; or, as no more than a place that knows a tool-call id, the execution of a tool; else None."""
    if span.scope != _SCOPE:
        return None
    given = span.attributes.get(INPUT)
    step = span.name.rpartition(".")[2]
    if not isinstance(given, str) or step not in ("run_agent_step", "call_tool"):
        return None
    if step == "run_agent_step":
        named = _AGENT.search(given[-_MAX_TAIL:])
        # Without a name given, all are called `Agent`.
        return agent(agent_of_span(f"{named[1]}.run") if named else None)
    called, name = _TOOL.search(given[-_MAX_TAIL:]), _TOOL_NAME.search(given[:_MAX_TAIL])
    if called is None or name is None:
        return None
    return SpanReading(kind=SpanKind.OTHER, tool_call_id=called[1], tool_name=name[1])


def delegation(span: SpanView, tool: str) -> SpanReading | None:
    """The coworker whom CrewAI's own tool asks; None for other tools."""
    if tool not in _DELEGATES:
        return None
    given = json_value(span.attributes.get(INPUT))
    coworker = given.get("coworker") if isinstance(given, dict) else None
    return agent(coworker.strip()[:MAX_TEXT] or None if isinstance(coworker, str) else None)
