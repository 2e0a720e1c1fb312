"""AgentOps (`agentops.span.kind`): its decorators and its instrumentations of frameworks.

Its LLM spans speak `otel_genai` besides. Measured on 0.4: a span `tool_call.NAME` stands for a call that the model
asked for, not for an execution, whatever its kind says; `workflow`, `session` and `task` wrap.
"""

from __future__ import annotations

from tracegrad.schemas.attributes import GEN_AI_AGENT_NAME, GEN_AI_RESPONSE_ID, GEN_AI_TOOL_NAME
from tracegrad.schemas.records.facts import SpanKind

from ..reading.agent_hints import agent_of_span
from ..reading.read_output import COMPLETION_KEYS, of_completion
from ..reading.span_view import SpanView
from .dialect import OTHER, WRAPPER, Dialect, SpanReading, agent, execution

_KIND = "agentops.span.kind"
_OPERATION = "operation.name"
_AGENTS = ("agent.name", "agent.role", GEN_AI_AGENT_NAME, _OPERATION)
_TOOLS = ("tool.name", GEN_AI_TOOL_NAME, _OPERATION)
_CALL_IDS = ("tool.call.id", "gen_ai.tool.call.id")
_RESULTS = ("tool.result", "agentops.tool.output", "agentops.entity.output", "tool.output")
_WRAPPERS = frozenset({"workflow", "session", "task", "chain", "workflow.step"})


def _read(span: SpanView) -> SpanReading | None:
    kind = span.text(_KIND)
    if kind is None:
        return None
    if kind.rpartition(".")[2].lower() == "tool":  # also `AgentOpsSpanKindValues.TOOL`, an enumeration's own text
        return WRAPPER if span.name.startswith("tool_call.") else _read_tool(span)
    if kind == "llm":
        said = of_completion(span.attributes)
        return SpanReading(kind=SpanKind.LLM, response_id=span.text(GEN_AI_RESPONSE_ID), output=said)
    if kind == "agent":
        return agent(span.text(*_AGENTS), guess=agent_of_span(span.name))
    return WRAPPER if kind in _WRAPPERS else OTHER


def _read_tool(span: SpanView) -> SpanReading:
    guess = span.name.removesuffix(".tool")
    return execution(span.text(*_TOOLS), span.text(*_CALL_IDS), span.value(*_RESULTS), guess=guess)


_KEYS = frozenset({GEN_AI_RESPONSE_ID, *_AGENTS, *_TOOLS, *_CALL_IDS, *_RESULTS})
AGENTOPS = Dialect("agentops", frozenset({_KIND}), _KEYS | COMPLETION_KEYS, _read)
