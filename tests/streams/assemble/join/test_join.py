"""Calls meet their spans, tools meet the calls that asked for them; nothing is matched by a guess."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import pytest

from tests.streams.assemble.join.joins import join_calls, join_tools, tool_spans
from tests.streams.make import call, call_id, tool_call
from tracegrad.schemas.records.facts import SpanFact, SpanKind, ToolStatus
from tracegrad.streams.assemble.join.calls import CallJoin
from tracegrad.streams.assemble.join.span_tree import SpanTree

TRACE = "11" * 16


def fact(
    span_id: str, kind: SpanKind = SpanKind.OTHER, *, parent: str | None = None, at: int = 0, **rest: Any
) -> SpanFact:
    """A span fact of one time unit."""
    settings: dict[str, Any] = {"name": span_id, "dialect": "none", "service": "s", "trace_id": TRACE, "end_ns": at + 1}
    return SpanFact(span_id=span_id, parent_span_id=parent, kind=kind, start_ns=at, **{**settings, **rest})


AGENT = fact("agent", SpanKind.AGENT, agent_name="planner")
LLM = fact("llm", SpanKind.LLM, response_id=call_id("a"), at=10)
ASKED = [call("a", None, tool_calls=(tool_call("1"),))]
JOINED = join_calls(ASKED, [LLM])


def test_response_id_comes_first() -> None:
    """An LLM span that names the response is the call's, wherever the request came from."""
    spans = [AGENT, fact("llm", SpanKind.LLM, parent="agent", response_id=call_id("a"), at=5)]
    (joined,) = join_calls([call("a", None, trace_id=TRACE, parent_span_id="elsewhere")], spans)
    assert joined == CallJoin("planner", "response_id", 6, "agent_span", 5)


def test_traceparent_ancestor_comes_second() -> None:
    """The caller's span leads up to its agent through spans of any kind."""
    spans = [AGENT, fact("chain", parent="agent"), fact("POST", parent="chain")]
    (joined,) = join_calls([call("a", None, trace_id=TRACE, parent_span_id="POST")], spans)
    assert joined == CallJoin("planner", "traceparent", None, "agent_span")


def test_an_unmatched_call_is_the_only_agents_or_nobodys() -> None:
    """It trains all the same; of two agents nobody knows which it was."""
    assert join_calls([call("a", None)], [AGENT]) == [CallJoin("planner", "none", None, "sole_agent")]
    other = fact("other", SpanKind.AGENT, agent_name="coder")
    assert join_calls([call("a", None)], [AGENT, other]) == [CallJoin(None, "none", None)]


def test_stacked_llm_spans_prefer_the_one_under_an_agent() -> None:
    """LangGraph: the framework's span hangs under the agent, the HTTP client's under the root, both with the id."""
    spans = [
        AGENT,
        fact("framework", SpanKind.LLM, parent="agent", response_id=call_id("a"), at=1),
        fact("root"),
        fact("x", parent="root"),
        fact("y", parent="x"),
        fact("client", SpanKind.LLM, parent="y", response_id=call_id("a"), at=2),
    ]
    for order in itertools.permutations(spans):
        assert join_calls([call("a", None)], list(order)) == [CallJoin("planner", "response_id", 2, "agent_span", 1)]


def test_within_a_tool_the_agent_that_called_it_is_not_at_work() -> None:
    """CrewAI's delegation runs another agent without a span; a tool may ask a model itself. Who has a span is named."""
    tool = fact("tool", SpanKind.TOOL, parent="agent", tool_name="delegate", at=1)
    inner = fact("inner", SpanKind.AGENT, parent="tool", agent_name="coder", at=2)
    for parent, name, rung in (("tool", None, "inside_tool"), ("inner", "coder", "agent_span")):
        llm = fact("llm", SpanKind.LLM, parent=parent, response_id=call_id("a"), at=3)
        (joined,) = join_calls([call("a", None)], [AGENT, tool, inner, llm])
        assert (joined.agent, joined.named_by) == (name, rung)


def test_a_tool_told_of_twice_still_names_the_agent_that_called_it() -> None:
    """Two instrumentations, one within the other's span."""
    outer = fact("outer", SpanKind.TOOL, parent="agent", tool_name="calc")
    inner = fact("inner", SpanKind.TOOL, parent="outer", tool_name="calc", tool_call_id="call_1")
    (joined,) = join_calls(ASKED, [AGENT, outer, inner])
    assert (joined.agent, joined.joined_by, joined.named_by) == ("planner", "tool_call_id", "agent_span")


def test_nearest_agent_wins_and_circles_end() -> None:
    """A sub-agent's call is the sub-agent's; spans that are each other's parents do not hang the fold."""
    inner = fact("inner", SpanKind.AGENT, parent="agent", agent_name="coder")
    leaf = fact("leaf", parent="inner")
    above = SpanTree([AGENT, inner, leaf]).above(leaf)
    assert (above.depth, above.named and above.named.name) == (2, "coder")
    one, two = fact("one", parent="two"), fact("two", parent="one")
    assert SpanTree([one, two]).above(one).named is None


def test_tool_call_id_joins_a_tool_to_its_call() -> None:
    """Whatever the order; where no span tells when the answer was there, at any time."""
    calls = [call("a", None, tool_calls=(tool_call("1"),)), call("b", None, tool_calls=(tool_call("2"),))]
    tool = fact("t", SpanKind.TOOL, tool_name="calc", tool_call_id="call_2")
    assert join_tools(calls, join_calls(calls, []), [tool]) == [[], [(tool, "call_2")]]


def test_a_tool_without_id_answers_the_last_open_request() -> None:
    """A tool that raised names no id: the request of its name that was answered before it began."""
    calls = [call(name, None, tool_calls=(tool_call(name),)) for name in "abc"]
    spans = [
        fact(f"llm{name}", SpanKind.LLM, response_id=call_id(name), at=at)
        for name, at in zip("abc", (0, 10, 20), strict=True)
    ]
    tool = fact("t", SpanKind.TOOL, tool_name="calc", at=12)
    assert join_tools(calls, join_calls(calls, spans), [tool]) == [[], [(tool, "call_b")], []]


def test_without_times_tools_answer_requests_in_order() -> None:
    """When the calls have no spans, the order of records is all there is."""
    calls = [call(name, None, tool_calls=(tool_call(name),)) for name in "ab"]
    tools = [fact("t1", SpanKind.TOOL, tool_name="calc", at=1), fact("t2", SpanKind.TOOL, tool_name="calc", at=2)]
    assert join_tools(calls, join_calls(calls, []), tools) == [[(tools[0], "call_a")], [(tools[1], "call_b")]]


def test_a_tool_that_nobody_asked_for_joins_nothing() -> None:
    """Another name, or one request executed twice: an agent cannot earn by inventing executions."""
    calls = [call("a", None, tool_calls=(tool_call("a"),))]
    tools = [fact(f"t{n}", SpanKind.TOOL, tool_name="calc", at=n) for n in range(3)]
    other = fact("o", SpanKind.TOOL, tool_name="other")
    assert join_tools(calls, join_calls(calls, []), [other, *tools]) == [[(tools[0], "call_a")]]


def test_nested_tool_spans_with_one_id_count_once() -> None:
    """Stacked instrumentations: the leaf-most tells most."""
    outer = fact("outer", SpanKind.TOOL, tool_name="calc", tool_call_id="call_1", at=0)
    inner = fact("inner", SpanKind.TOOL, parent="outer", tool_name="calc", tool_call_id="call_1", at=1)
    assert tool_spans([outer, inner]) == tool_spans([inner, outer]) == [inner]


def test_an_asked_id_is_answered_by_its_tool_whatever_the_clocks_say() -> None:
    """Not by another tool's name, nor under an id that nobody asked for; the tool may run while its answer is still
    streamed, or on a host that is behind."""
    for name, id_ in (("other", "call_1"), ("calc", "call_9")):
        assert join_tools(ASKED, JOINED, [fact("t", SpanKind.TOOL, tool_name=name, tool_call_id=id_, at=20)]) == [[]]
    for at in (11, 10, 9, 0):
        true = fact("t", SpanKind.TOOL, tool_name="calc", tool_call_id="call_1", at=at)
        assert join_tools(ASKED, JOINED, [true]) == [[(true, "call_1")]]


def test_a_span_that_answers_nothing_displaces_no_execution() -> None:
    """A forged child of the failed tool repeats its id under another name, or too early; the true one stays."""
    true = fact("t", SpanKind.TOOL, tool_name="calc", tool_call_id="call_1", at=11, tool_status=ToolStatus.FAILED)
    for name, at in (("other", 12), ("calc", 0)):
        forged = fact("f", SpanKind.TOOL, parent="t", tool_name=name, tool_call_id="call_1", at=at)
        for order in ([true, forged], [forged, true]):
            assert join_tools(ASKED, JOINED, order) == [[(true, "call_1")]]


def test_stacked_spans_of_which_only_the_inner_has_an_id_are_one_execution() -> None:
    """The outer one, an instrumentation's, is no second execution for another open request of the name."""
    calls = [call("a", None, tool_calls=(tool_call("1"), tool_call("2")))]
    joined = join_calls(calls, [LLM])
    outer = fact("outer", SpanKind.TOOL, tool_name="calc", at=12)
    inner = fact("inner", SpanKind.TOOL, parent="outer", tool_name="calc", tool_call_id="call_1", at=13)
    for order in ([outer, inner], [inner, outer]):
        assert tool_spans(order) == [inner]
        assert join_tools(calls, joined, order) == [[(inner, "call_1")]]


@pytest.mark.slow
def test_tools_without_ids_are_joined_in_time_that_grows_with_their_number() -> None:
    """Four thousand turns, their spans in any order, in a second at most; each tool meets its own turn."""
    num_turns = 4_000
    calls = [call(f"{n:x}".zfill(6), None, tool_calls=(tool_call(str(n)),)) for n in range(num_turns)]
    answers = [fact(f"l{n}", SpanKind.LLM, response_id=call_.call_id, at=10 * n) for n, call_ in enumerate(calls)]
    tools = [fact(f"t{n}", SpanKind.TOOL, tool_name="calc", at=10 * n + 5) for n in range(num_turns)]
    spans = random.Random(0).sample([*answers, *tools], 2 * num_turns)
    started_s = time.process_time()
    executions = join_tools(calls, join_calls(calls, spans), spans)
    elapsed_s = time.process_time() - started_s
    assert executions == [[(tool, f"call_{n}")] for n, tool in enumerate(tools)]
    assert elapsed_s < 1.0
    without_times = join_tools(calls, join_calls(calls, []), tools)
    assert [answered for ((_, answered),) in without_times] == [f"call_{n}" for n in range(num_turns)]
