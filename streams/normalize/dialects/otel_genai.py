"""OpenTelemetry's GenAI semantic conventions (`gen_ai.*`), new and old, as instrumentations and frameworks emit them.

A span speaks it by `gen_ai.operation.name` (`execute_tool`, `invoke_agent`, `chat` and its kin), or, before there were
operations, by the type of the request (`gen_ai.request.type`, `llm.request.type`). The answer stands in
`gen_ai.output.messages`, in an event, or in `gen_ai.completion.N`; a tool's result likewise. The frameworks that emit
it themselves (AutoGen, AG2, Agent Framework, Semantic Kernel, pydantic-ai, AgentScope, Strands, ADK, `ai` 7) need no
dialect of their own for it.
"""

from __future__ import annotations

from tracegrad.schemas.attributes import (
    GEN_AI_AGENT_NAME,
    GEN_AI_OPERATION_NAME,
    GEN_AI_RESPONSE_ID,
    GEN_AI_TOOL_CALL_ID,
    GEN_AI_TOOL_NAME,
    GEN_AI_TOOL_RESULT,
)
from tracegrad.schemas.records.facts import SpanKind
from tracegrad.schemas.text import json_value

from ..reading.read_output import COMPLETION_KEYS, NOTHING, Output, of_completion, of_messages, of_response
from ..reading.span_view import SpanView
from ..reading.tool_message import tool_message
from .dialect import OTHER, WRAPPER, Dialect, SpanReading, agent

_LLM_OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "completion"})
_REQUEST_TYPES = ("gen_ai.request.type", "llm.request.type")
_LLM_TYPES = frozenset({"chat", "completion"})
_MODEL = "gen_ai.request.model"
_OUTPUT = "gen_ai.output.messages"
_RESULTS = (GEN_AI_TOOL_RESULT, "anthropic.tool_result.content")
_CHOICE = "gen_ai.choice"
_DETAILS = "gen_ai.client.inference.operation.details"
_EVENTS = {
    _CHOICE: frozenset({"index", "message", "content", "tool_calls"}),
    _DETAILS: frozenset({_OUTPUT}),
}
_NODES = "gen_ai.workflow.nodes"
"""OpenLLMetry's, of LangGraph: the graph whose run it calls an agent's, whatever it is a graph of."""
_LOOP = ("model", "agent", "tools")
_HOOKS = ("pre_model_hook", "post_model_hook", "generate_structured_response")
_UNKNOWN = frozenset({"unknown", "none", ""})
"""What frameworks write for an id that they do not have."""
_MARKS = frozenset({GEN_AI_OPERATION_NAME, *_REQUEST_TYPES})
_KEYS = (
    *_RESULTS,
    _MODEL,
    _NODES,
    _OUTPUT,
    GEN_AI_AGENT_NAME,
    GEN_AI_RESPONSE_ID,
    GEN_AI_TOOL_NAME,
    GEN_AI_TOOL_CALL_ID,
)


def _read(span: SpanView) -> SpanReading | None:
    operation = span.text(GEN_AI_OPERATION_NAME)
    if operation is None:
        return _read_llm(span) if span.text(*_REQUEST_TYPES) in _LLM_TYPES else None
    if operation == "execute_tool":
        return _read_tool(span)
    if operation == "invoke_agent":
        is_graph = not _is_loop(span.attributes.get(_NODES))
        return WRAPPER if is_graph else agent(span.text(GEN_AI_AGENT_NAME), guess=_named_by_span(span))
    if operation == "create_agent":
        return WRAPPER  # nobody is at work, and the name may be a default of the framework's
    return _read_llm(span) if operation in _LLM_OPERATIONS else OTHER


def _is_loop(nodes: object) -> bool:
    """Whether a graph's nodes are those of one agent: a model, its tools, and what a middleware hooks in."""
    if not isinstance(nodes, list):
        return True
    own = [node for node in nodes if not (isinstance(node, str) and ("." in node or node in _HOOKS))]
    return any(node in ("model", "agent") for node in nodes) and all(node in _LOOP for node in own)


def _named_by_span(span: SpanView) -> str | None:
    """The name in `invoke_agent NAME`, where no attribute has it; some write the model's there."""
    name = span.name.removeprefix("invoke_agent ")
    return None if name in (span.name, span.text(_MODEL)) else name


def _read_tool(span: SpanView) -> SpanReading:
    call_id = span.text(GEN_AI_TOOL_CALL_ID)
    event = span.events.get(_CHOICE, {})
    messages = [tool_message(span.attributes[key]) for key in _RESULTS if key in span.attributes]
    messages += [tool_message(event[key]) for key in ("message", "content") if key in event]
    ids = [message.call_id for message in messages if message.call_id]
    name = span.text(GEN_AI_TOOL_NAME)
    return SpanReading(
        kind=SpanKind.TOOL,
        is_guess=name is None,
        tool_name=name or span.name.removeprefix("execute_tool "),
        tool_call_id=next(iter(ids), None) if (call_id or "").lower() in _UNKNOWN else call_id,
        results=tuple(message.content for message in messages),
        declared=tuple(message.status for message in messages if message.status is not None),
    )


def _read_llm(span: SpanView) -> SpanReading:
    agent_name, response_id = span.text(GEN_AI_AGENT_NAME), span.text(GEN_AI_RESPONSE_ID)
    return SpanReading(kind=SpanKind.LLM, agent_name=agent_name, response_id=response_id, output=_answer(span))


def _answer(span: SpanView) -> Output:
    details, choice = span.events.get(_DETAILS, {}), span.events.get(_CHOICE, {})
    for messages in (span.attributes.get(_OUTPUT), details.get(_OUTPUT)):
        if messages is not None:
            return of_messages(messages)
    if choice.get("index", 0) == 0 and (said := choice.get("message", choice.get("content"))) is not None:
        decoded = json_value(said)
        asked = json_value(choice.get("tool_calls"))
        if isinstance(decoded, list | dict) or asked is None:
            return of_response(said)
        return of_response({"content": said, "tool_calls": asked})
    return NOTHING if choice else of_completion(span.attributes)


OTEL_GENAI = Dialect("otel_genai", _MARKS, COMPLETION_KEYS.union(_KEYS), _read, events=_EVENTS)
