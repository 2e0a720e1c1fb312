"""How spans are read: what the published instrumentations really emit, and the weak signs of failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.streams.make import TOPICS, call_id, config, otlp, span
from tracegrad.schemas.ids import WirePrefix, new_call, wire_id
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Facts, SpanFact, SpanKind, ToolStatus
from tracegrad.schemas.topics import Stage
from tracegrad.streams.config import StreamRules
from tracegrad.streams.folds import build_fold

DATA = Path(__file__).parent / "data"
TRACE = "11" * 16


def read(value: bytes, settings: StreamRules | None = None) -> list[SpanFact]:
    """The span facts of a request."""
    fold = build_fold(Stage.NORMALIZE, settings or config(), TOPICS)
    emission = fold.fold(Record(topic="otlp_spans", partition=0, offset=0, key=None, value=value))
    facts: list[SpanFact] = []
    for output in emission.outputs:
        decoded = EPISODE_EVENTS.decode(output.value)
        assert isinstance(decoded, Facts)
        facts += [fact for fact in decoded.facts if isinstance(fact, SpanFact)]
    return facts


def tool(settings: StreamRules | None = None, **fields: Any) -> tuple[ToolStatus, str]:
    """Status and its origin of one tool span."""
    (fact,) = read(otlp(span(TRACE, 1, gen_ai__operation__name="execute_tool", **fields)), settings)
    return fact.tool_status, fact.tool_status_from


def test_openai_instrumentation_with_hand_made_agent_spans() -> None:
    """Recorded from the calculator agent: three turns, the second tool raised."""
    facts = read((DATA / "otel_genai_openai_1.3b0.otlp").read_bytes())
    agents = [fact for fact in facts if fact.kind is SpanKind.AGENT]
    assert [agent.agent_name for agent in agents] == ["calculator"]
    answers = [fact.response_id for fact in facts if fact.kind is SpanKind.LLM]
    assert answers == [f"chatcmpl-{n:032x}" for n in (1, 2, 3)]
    tools = [fact for fact in facts if fact.kind is SpanKind.TOOL]
    assert [fact.tool_status.value for fact in tools] == ["succeeded", "failed", "succeeded"]
    assert [fact.tool_status_from for fact in tools] == ["span_status", "exception", "span_status"]
    assert [fact.tool_call_id for fact in tools] == [f"call_{n:024x}" for n in (1, 2, 3)]


@pytest.mark.parametrize("prefix", WirePrefix)
def test_an_answers_id_is_read_as_its_call_is_recorded(prefix: WirePrefix) -> None:
    """Each API's clients see it with a prefix of their own."""
    call = new_call("0" * 27 + "7")
    (fact,) = read(otlp(span(TRACE, 1, gen_ai__operation__name="chat", gen_ai__response__id=wire_id(call, prefix))))
    assert fact.response_id == call


def test_langgraph_agent_under_openinference() -> None:
    """Recorded from the LangGraph agent: ids stand in the JSON output only, and not on the tool that raised."""
    facts = read((DATA / "openinference_langchain_0.1.80.otlp").read_bytes())
    assert {fact.agent_name for fact in facts if fact.kind is SpanKind.AGENT} == {"agent"}
    answers = [(fact.dialect, fact.response_id) for fact in facts if fact.kind is SpanKind.LLM]
    assert sorted(answers) == [
        (dialect, f"chatcmpl-{n:032x}") for dialect in ("openinference", "otel_genai") for n in (1, 2)
    ]
    tools = [fact for fact in facts if fact.kind is SpanKind.TOOL]
    assert [(fact.tool_name, fact.tool_call_id, fact.tool_status.value, fact.tool_status_from) for fact in tools] == [
        ("calculator", f"call_{1:024x}", "succeeded", "attribute"),
        ("calculator", None, "failed", "exception"),
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (ToolStatus.SUCCEEDED, "span_status")),
        ({"status": 1}, (ToolStatus.SUCCEEDED, "span_status")),
        ({"status": 2}, (ToolStatus.FAILED, "span_status")),
        ({"status": 2, "exception": True}, (ToolStatus.FAILED, "exception")),
        ({"exception": True}, (ToolStatus.UNKNOWN, "")),
        ({"exception": True, "status": 1}, (ToolStatus.SUCCEEDED, "span_status")),
        ({"error__type": "ValueError"}, (ToolStatus.FAILED, "attribute")),
        ({"gen_ai__tool__call__result": "42"}, (ToolStatus.SUCCEEDED, "span_status")),
    ],
    ids=["unset", "ok", "error", "raised", "exception-alone", "exception-ok", "error-type", "result"],
)
def test_tool_status_from_the_strongest_sign(fields: dict[str, Any], expected: tuple[ToolStatus, str]) -> None:
    """An exception event without any status may have been dealt with, or not; an unset status is no error."""
    assert tool(**fields) == expected


@pytest.mark.parametrize("result", ["errors found: none", "error-free", "no error", "Terror at sea", "15", ""])
def test_other_text_is_no_failure(result: str) -> None:
    """A word that merely resembles one, or an error further on, is not a failure."""
    assert tool(gen_ai__tool__call__result=result)[0] is ToolStatus.SUCCEEDED


def test_a_cut_span_has_an_unknown_status() -> None:
    """Dropped attributes may have held the sign of failure; unknown is neither."""
    cut = span(TRACE, 1, gen_ai__operation__name="execute_tool")
    cut.dropped_attributes_count = 3
    assert read(otlp(cut))[0].tool_status is ToolStatus.UNKNOWN


@pytest.mark.parametrize("output", ["{", "{}", "[" * 5000, '{"data": 3}', '{"tool_call_id": 7}', "\x00"])
def test_odd_tool_outputs_are_read_as_text(output: str) -> None:
    """Whatever a tool returns, its span is read."""
    (fact,) = read(otlp(span(TRACE, 1, status=1, openinference__span__kind="TOOL", output__value=output)))
    assert (fact.kind, fact.tool_status) == (SpanKind.TOOL, ToolStatus.SUCCEEDED)


def test_model_text_cannot_pose_as_a_response_id() -> None:
    """Inside a JSON text quotes are escaped, so an id that the model wrote is not taken for the response's."""
    output = '{"content": "\\"id\\": \\"' + call_id("fake") + '\\"", "id": "' + call_id("true") + '"}'
    (fact,) = read(otlp(span(TRACE, 1, openinference__span__kind="LLM", output__value=output)))
    assert fact.response_id == call_id("true")
