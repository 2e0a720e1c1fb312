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
    request = ExportTraceServiceRequest.FromString(otlp(spoken("Weather desk", {"openinference.span.kind": "AGENT"})))
    request.resource_spans[0].scope_spans[0].scope.name = "openinference.instrumentation.openai_agents"
    assert read(request.SerializeToString())[0].kind.value == "other"
