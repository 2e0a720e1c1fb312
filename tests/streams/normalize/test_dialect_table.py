"""What each dialect reads: spans as instrumentations write them (recorded, or by their source), and their meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.streams.make import otlp, pairs, span
from tests.streams.normalize.rows_of_conventions import (
    ASKED,
    CALL,
    FAILED,
    ID,
    MESSAGE,
    OPENINFERENCE,
    OTEL,
    TRACELOOP,
    Row,
)
from tests.streams.normalize.rows_of_products import OTHERS, PLATFORMS
from tests.streams.normalize.test_dialects import TRACE, read
from tracegrad.schemas.records.facts import SpanFact, digest_of

TABLES = {"otel": OTEL, "openinference": OPENINFERENCE, "traceloop": TRACELOOP, "platform": PLATFORMS, "other": OTHERS}
ROWS = {f"{table} {name}": row for table, rows in TABLES.items() for name, row in rows.items()}


def spoken(name: str, attributes: dict[str, Any]) -> Span:
    """A span with these attributes."""
    return span(TRACE, 1, name, **attributes)


def scoped(scope: str, name: str, attributes: dict[str, Any]) -> bytes:
    """A request with one span of an instrumentation."""
    request = ExportTraceServiceRequest.FromString(
        otlp(spoken(name, {"openinference.span.kind": "CHAIN", **attributes}))
    )
    request.resource_spans[0].scope_spans[0].scope.name = scope
    value: bytes = request.SerializeToString()
    return value


def fact(made: Span) -> SpanFact:
    """What one span means."""
    (found,) = read(otlp(made))
    return found


def seen(found: SpanFact, expected: dict[str, Any]) -> dict[str, Any]:
    """The fields that a row names."""
    return {name: getattr(found, name) for name in expected}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_span_means_what_its_dialects_say(row: Row) -> None:
    """Kind, names, ids, outcome, and what its answer is known by."""
    name, attributes, expected = row
    assert seen(fact(spoken(name, attributes)), expected) == expected


def test_the_server_s_side_of_a_call_is_none_of_the_agent_s() -> None:
    """vLLM's span and an MCP server's lie below those of who called them."""
    for name, attributes in (
        ("llm_request", {"gen_ai.request.id": "x"}),
        ("chat m", {"gen_ai.operation.name": "chat", "gen_ai.response.id": ID}),
        ("tools/call f", {"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool"}),
    ):
        made = spoken(name, attributes)
        made.kind = Span.SPAN_KIND_SERVER
        assert fact(made).kind.value == "other"


@pytest.mark.parametrize(
    ("more", "status"), [({}, "succeeded"), ({"error.type": "tool_error"}, "failed")], ids=["ran", "failed"]
)
def test_an_mcp_server_knows_how_its_tool_ended(more: dict[str, Any], status: str) -> None:
    """Its client's span ends well either way, and alone tells nothing."""
    name, attributes = "tools/call f", {"mcp.method.name": "tools/call", "gen_ai.tool.name": "f"}
    client, server = spoken(name, attributes), spoken(name, attributes | more)
    server.kind = Span.SPAN_KIND_SERVER
    assert (fact(client).tool_status.value, fact(server).tool_status.value) == ("unknown", status)


@pytest.mark.parametrize(
    ("operation", "event", "attributes", "expected"),
    [
        ("chat", "gen_ai.choice", {"index": 0, "message": json.dumps(MESSAGE)}, ASKED),
        (
            "chat",
            "gen_ai.choice",
            {"message": json.dumps([{"text": "42"}, {"toolUse": {"toolUseId": CALL, "name": "f"}}])},
            ASKED,
        ),
        ("chat", "gen_ai.choice", {"message": "42"}, {"output_digest": digest_of("42")}),
        (
            "chat",
            "gen_ai.client.inference.operation.details",
            {"gen_ai.output.messages": json.dumps([MESSAGE])},
            ASKED,
        ),
        ("execute_tool", "gen_ai.choice", {"message": json.dumps([{"text": "Error: it broke"}])}, FAILED),
    ],
    ids=["old", "strands", "text", "details", "strands_tool"],
)
def test_content_in_span_events_is_read(
    operation: str, event: str, attributes: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Where conventions before 1.37, and Strands, keep it."""
    made = spoken("x", {"gen_ai.operation.name": operation})
    made.events.add(name=event, attributes=pairs(attributes))
    assert seen(fact(made), expected) == expected


def test_the_root_of_an_openai_agents_run_is_no_agent() -> None:
    """It is called after the workflow; the agents below it have names."""
    request = scoped(
        "openinference.instrumentation.openai_agents", "Weather desk", {"openinference.span.kind": "AGENT"}
    )
    assert read(request)[0].kind.value == "other"


LLAMA_SAID = 'ChatMessage(text="current_agent_name=x")'
LLAMA_AGENT = f'{{"ctx": "x", "ev": "AgentSetup(input=[{LLAMA_SAID}], current_agent_name=\'%s\')"}}'
LLAMA_TOOL = '{"ctx": "x", "ev": "ToolCall(tool_name=\'f\', tool_kwargs={\'a\': 1}, tool_id=\'%s\')"}'


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("AgentWorkflow.run_agent_step", LLAMA_AGENT % "planner", {"kind": "agent", "agent_name": "planner"}),
        ("FunctionAgent.run_agent_step", LLAMA_AGENT % "Agent", {"kind": "agent", "agent_name": None}),
        ("AgentWorkflow.run_agent_step", "{}", {"kind": "agent", "agent_name": None}),
        ("AgentWorkflow.call_tool", LLAMA_TOOL % CALL, {"kind": "other", "tool_name": "f", "tool_call_id": CALL}),
        ("AgentWorkflow.call_tool", "{}", {"kind": "other", "tool_call_id": None}),
        ("AgentWorkflow.setup_agent", LLAMA_AGENT % "planner", {"kind": "other", "agent_name": None}),
    ],
    ids=["agent", "default_name", "cut", "tool", "cut_tool", "other_step"],
)
def test_llama_index_tells_names_by_the_input_of_a_step(name: str, given: str, expected: dict[str, Any]) -> None:
    """Recorded: the event ends with them; a class's default name is nobody's."""
    request = scoped("openinference.instrumentation.llama_index", name, {"input.value": given})
    assert seen(read(request)[0], expected) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"task": "x", "coworker": " expert "}', {"kind": "agent", "agent_name": "expert"}),
        ("{", {"kind": "agent", "agent_name": None}),
    ],
    ids=["named", "cut"],
)
def test_crew_ai_s_delegation_is_the_coworker_at_work(given: str, expected: dict[str, Any]) -> None:
    """No span of its own tells of the coworker, so the calls below would pass for the other agent's."""
    attributes = {"openinference.span.kind": "TOOL", "tool.name": "Delegate work to coworker", "input.value": given}
    assert seen(fact(spoken("x.run", attributes)), expected) == expected


def test_a_langgraph_node_is_called_as_its_answers_say() -> None:
    """Recorded of `create_react_agent(name=...)`: its node is `agent`, its messages bear the name."""
    scope = "openinference.instrumentation.langchain"
    for name, expected in (("solver", "solver"), (None, "agent"), (7, "agent"), ("LangGraph", None)):
        messages = [{"type": "human", "data": {"name": "u"}}, {"type": "ai", "data": {"name": name}}]
        for output in ({"messages": messages}, [{"update": {"messages": messages}}]):
            attributes = {"openinference.span.kind": "AGENT", "output.value": json.dumps(output)}
            assert read(scoped(scope, "agent", attributes))[0].agent_name == expected
    attributes = {"openinference.span.kind": "AGENT", "output.value": "{"}
    assert read(scoped(scope, "agent", attributes))[0].agent_name == "agent"


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        (["agent", "tools"], "agent"),
        (["model", "tools", "Summary.before_model"], "agent"),
        (["model"], "agent"),
        (["math", "poet"], "other"),
        (["agent", "writer"], "other"),
    ],
)
def test_a_graph_of_agents_is_none(nodes: list[str], kind: str) -> None:
    """OpenLLMetry says `invoke_agent` of any graph of LangGraph's, and names its nodes."""
    made = spoken("invoke_agent x", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "x"})
    value = made.attributes.add(key="gen_ai.workflow.nodes").value
    for node in nodes:
        value.array_value.values.add(string_value=node)
    found = fact(made)
    assert (found.kind.value, bool(found.agent_hints)) == (kind, kind == "agent")
