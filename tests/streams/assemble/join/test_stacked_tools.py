"""One execution that several spans tell of counts once, with the id and the outcome that any of them knows."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from tests.streams.assemble.join.joins import join_calls, join_tools, tool_spans
from tests.streams.assemble.join.test_join import AGENT, fact
from tests.streams.make import call, tool_call
from tracegrad.schemas.records.facts import SpanFact, SpanKind, ToolStatus
from tracegrad.streams.assemble.join.calls import CallJoin

SUCCEEDED, FAILED, UNKNOWN = ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.UNKNOWN
WEAK = {"tool_status": SUCCEEDED, "tool_status_from": "span_status"}
ASKED = tool_call("1", "search")


def tool(span_id: str, parent: str | None = "agent", at: int = 10, **rest: Any) -> SpanFact:
    """A span of the tool `search`."""
    return fact(span_id, SpanKind.TOOL, parent=parent, at=at, **{"tool_name": "search", **WEAK, **rest})


def seen(*spans: SpanFact) -> list[tuple[str, str | None, str]]:
    """(span, id, outcome) of each execution, whatever the order of the spans."""
    found = {
        tuple((one.span_id, one.tool_call_id, one.tool_status.value) for one in tool_spans(list(order)))
        for order in permutations((AGENT, *spans))
    }
    assert len(found) == 1
    return list(found.pop())


def test_a_transport_within_a_tool_is_the_same_execution() -> None:
    """MCP's client span within the framework's; neither is counted twice, with an id or without."""
    assert seen(tool("outer", tool_call_id="call_1"), tool("mcp", "outer")) == [("mcp", "call_1", "succeeded")]
    assert seen(tool("outer"), fact("POST", parent="outer"), tool("mcp", "POST")) == [("mcp", None, "succeeded")]


def test_a_step_that_knows_the_id_lends_it() -> None:
    """LlamaIndex's `call_tool` names it, the tool's own span within does not."""
    step = fact("step", parent="agent", tool_name="search", tool_call_id="call_1")
    assert seen(step, tool("inner", "step", tool_status=FAILED, tool_status_from="exception")) == [
        ("inner", "call_1", "failed")
    ]


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ((SUCCEEDED, "attribute"), (FAILED, "exception"), "succeeded"),
        ((SUCCEEDED, "span_status"), (FAILED, "attribute"), "failed"),
        ((FAILED, "exception"), (SUCCEEDED, "result"), "failed"),
        ((UNKNOWN, ""), (SUCCEEDED, "result"), "succeeded"),
        ((UNKNOWN, "text"), (SUCCEEDED, "span_status"), "unknown"),
        ((UNKNOWN, ""), (SUCCEEDED, "span_status"), "succeeded"),
        ((SUCCEEDED, "span_status"), (UNKNOWN, ""), "unknown"),
    ],
    ids=["dealt_with", "hidden", "raised_after", "silent", "doubtful", "silent_above", "silent_within"],
)
def test_the_outermost_that_has_a_sign_is_believed(
    outer: tuple[ToolStatus, str], inner: tuple[ToolStatus, str], expected: str
) -> None:
    """It saw whether a failure within was dealt with; the mere end of a span is no sign."""
    ((_, _, status),) = seen(
        tool("outer", tool_status=outer[0], tool_status_from=outer[1]),
        tool("inner", "outer", tool_status=inner[0], tool_status_from=inner[1]),
    )
    assert status == expected


@pytest.mark.parametrize(
    ("outer", "server", "expected"),
    [
        ((SUCCEEDED, "span_status"), (FAILED, "attribute"), "failed"),
        ((SUCCEEDED, "span_status"), (SUCCEEDED, "span_status"), "succeeded"),
        ((SUCCEEDED, "span_status"), (UNKNOWN, ""), "unknown"),
        ((UNKNOWN, "text"), (FAILED, "attribute"), "failed"),
        ((SUCCEEDED, "attribute"), (FAILED, "attribute"), "succeeded"),
        ((FAILED, "result"), (SUCCEEDED, "span_status"), "failed"),
    ],
    ids=["hidden", "ran", "silent", "doubtful", "dealt_with", "raised_after"],
)
def test_the_far_side_of_a_transport_tells_what_that_does_not(
    outer: tuple[ToolStatus, str], server: tuple[ToolStatus, str], expected: str
) -> None:
    """MCP's server, another process: what the framework's span has a sign of, it knows better."""
    far = fact("server", SpanKind.OTHER, parent="GET", tool_status=server[0], tool_status_from=server[1])
    spans = (
        tool("outer", tool_status=outer[0], tool_status_from=outer[1]),
        tool("mcp", "outer", tool_status=UNKNOWN, tool_status_from=""),
        fact("GET", parent="mcp"),
        far,
    )
    assert seen(*spans) == [("mcp", None, expected)]
    assert seen(*(one for one in spans if one.span_id != "outer"))[0][2] == server[0].value


@pytest.mark.parametrize(
    "spans",
    [
        (tool("outer"), tool("inner", "outer", tool_name="fetch")),
        (tool("outer", tool_call_id="call_1"), tool("inner", "outer", tool_call_id="call_2")),
        (tool("outer"), fact("sub", SpanKind.AGENT, parent="outer", agent_name="s"), tool("inner", "sub")),
        (tool("one"), tool("two")),
    ],
    ids=["other_tool", "other_id", "agent_between", "siblings"],
)
def test_other_executions_stay_apart(spans: tuple[SpanFact, ...]) -> None:
    """A tool that uses another, or an agent that uses it again, is no stack."""
    assert len(seen(*spans)) == 2


def test_a_transport_takes_no_parallel_request() -> None:
    """Two calls of one tool, one of which has its id from the framework: the other is not answered by its transport."""
    asked = call("a", None, tool_calls=(ASKED, tool_call("2", "search")))
    spans = [AGENT, tool("outer", tool_call_id="call_1"), tool("mcp", "outer", at=11)]
    (found,) = join_tools([asked], [CallJoin("planner", "none", None, "")], spans)
    assert [(span.span_id, id_) for span, id_ in found] == [("mcp", "call_1")]


def test_circular_parents_end() -> None:
    """Whatever a trace claims of itself."""
    assert len(tool_spans([tool("a", "b"), tool("b", "a")])) <= 2


def test_an_agent_without_a_name_hides_the_one_above() -> None:
    """Its calls are not the outer agent's; whose they are is unknown."""
    spans = [AGENT, fact("inner", SpanKind.AGENT, parent="agent"), fact("POST", parent="inner")]
    (joined,) = join_calls([call("a", None, trace_id=AGENT.trace_id, parent_span_id="POST")], spans)
    assert (joined.agent, joined.named_by) == (None, "unnamed")
