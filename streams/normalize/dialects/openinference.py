"""OpenInference (`openinference.span.kind`), as its instrumentations of frameworks emit it.

Measured: an LLM span names the response id only inside its JSON `output.value`, and in streams of OpenAI Agents, whose
value is a list of responses, the whole answer; a tool span names the tool-call id only
there too (LangChain), or not at all; a span's status is OK or ERROR, never unset, once it ended. Who is an agent each
instrumentation says in a way of its own: `agent.name` or `graph.node.id` (OpenAI Agents, AutoGen, CrewAI), the name
of the span (smolagents, CrewAI: `NAME.run`), any run whose name contains "agent" (LangChain), or the input of a
step (LlamaIndex). LlamaIndex makes an LLM span of each method of a model, also of those that call nothing.
"""

from __future__ import annotations

from tracegrad.schemas.records.facts import SpanKind

from ..reading.agent_hints import LANGCHAIN_HINT, agent_of_span, name_in_answers
from ..reading.read_output import FLAT_KEYS, minted_in, of_flat, of_response
from ..reading.span_view import SpanView
from .dialect import OTHER, Dialect, SpanReading, agent, tool
from .openinference_steps import INPUT, delegation, step_of_llama_index

KIND = "openinference.span.kind"
_AGENT_NAMES = ("agent.name", "graph.node.id", "graph.node.name")
TOOL_NAME = "tool.name"
_TOOL_CALL_IDS = ("tool_call.id", "tool.id")
OUTPUT = "output.value"
_OPENAI_AGENTS = "openinference.instrumentation.openai_agents"
_LANGCHAIN = "openinference.instrumentation.langchain"
_METHODS = ("__call__", "acall", "call")
_NO_CALLS = ("_prepare", "get_tool_calls", "_get_")
"""How the names of a model's methods begin that call no model (LlamaIndex)."""


def _read(span: SpanView) -> SpanReading | None:
    kind = span.text(KIND)
    if kind is None:
        return None
    if kind == "TOOL":
        return _read_tool(span)
    if kind == "LLM":
        return OTHER if span.name.rpartition(".")[2].startswith(_NO_CALLS) else _read_llm(span)
    named_by_langchain = span.hints.get(LANGCHAIN_HINT)
    if kind == "AGENT":
        return _read_agent(span, named_by_langchain)
    if kind == "CHAIN" and named_by_langchain == span.name:
        return agent(span.name)
    return step_of_llama_index(span) or OTHER


def _read_agent(span: SpanView, named_by_langchain: str | None) -> SpanReading:
    name = span.text(*_AGENT_NAMES)
    if name is None and named_by_langchain is not None:
        # The agent's own run bears its name; others are steps within it, whatever they are called.
        return agent(named_by_langchain) if span.name == named_by_langchain else OTHER
    if name is None and span.scope == _OPENAI_AGENTS:
        return OTHER  # the root, which bears the workflow's name
    answerer = name_in_answers(span.attributes.get(OUTPUT)) if name is None and span.scope == _LANGCHAIN else None
    return agent(name or answerer, guess=agent_of_span(span.name))


def _read_tool(span: SpanView) -> SpanReading:
    owner, _, method = span.name.rpartition(".")
    name = span.text(TOOL_NAME)
    said = name or (owner if owner and method in _METHODS else span.name)
    return delegation(span, said) or tool(
        name, guess=said, output=span.attributes.get(OUTPUT), call_id=span.text(*_TOOL_CALL_IDS)
    )


def _read_llm(span: SpanView) -> SpanReading:
    output = span.attributes.get(OUTPUT)
    is_flat = not FLAT_KEYS.isdisjoint(span.attributes) or not isinstance(output, str) or output[:1] != "["
    said = of_flat(span.attributes) if is_flat else of_response(output)
    return SpanReading(kind=SpanKind.LLM, response_id=minted_in(output), output=said)


_KEYS = frozenset({*_AGENT_NAMES, TOOL_NAME, *_TOOL_CALL_IDS, OUTPUT, INPUT})
OPENINFERENCE = Dialect("openinference", frozenset({KIND}), _KEYS | FLAT_KEYS, _read)
