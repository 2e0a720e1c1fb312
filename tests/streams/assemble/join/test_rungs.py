"""Which rung joins a call, which rung names its agent, and where nobody is named because two would be."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.assemble.join.joins import join_calls
from tests.streams.assemble.join.test_join import TRACE, fact
from tests.streams.make import call, call_id, tool_call
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.facts import SpanFact, SpanKind, digest_of

AGENT, LLM, TOOL = SpanKind.AGENT, SpanKind.LLM, SpanKind.TOOL
PLANNER = fact("planner", AGENT, agent_name="planner")
CODER = fact("coder", AGENT, agent_name="coder", parent="planner")
OTHER = fact("other", AGENT, agent_name="critic")


def asked(name: str, **changes: Any) -> CallRecord:
    """A call that asks for one tool."""
    return call(name, None, tool_calls=(tool_call(name),), **changes)


def joins(calls: list[CallRecord], *spans: SpanFact) -> list[tuple[str | None, str, str]]:
    """(agent, joined by, named by) of each call."""
    return [(joined.agent, joined.joined_by, joined.named_by) for joined in join_calls(calls, spans)]


def test_an_answer_joins_by_the_ids_that_it_asks_for() -> None:
    """LangChain streams and openai-agents repeat no response id; the minted tool-call ids are exact."""
    spans = [PLANNER, CODER, OTHER, fact("llm", LLM, parent="coder", requested_tool_call_ids=("call_a",))]
    assert joins([asked("a"), asked("b")], *spans) == [("coder", "content", "agent_span"), (None, "none", "")]
    two = fact("two", LLM, parent="coder", requested_tool_call_ids=("call_a", "call_b"))
    assert [joined for _, joined, _ in joins([asked("a"), asked("b")], PLANNER, two)] == ["none", "none"]


def told(name: str, text: str, *, parent: str, at: int, **rest: Any) -> SpanFact:
    """A model's span that tells its answer's text."""
    return fact(name, LLM, parent=parent, at=at, output_digest=digest_of(text), **rest)


def test_an_answer_joins_by_its_text_where_that_is_the_only_one() -> None:
    """Two calls that said the same, with one span: nobody knows whose."""
    spans = [PLANNER, CODER, told("one", "yes", parent="coder", at=1)]
    assert joins([call("a", None, content="yes"), call("b", None, content="no")], *spans)[0][:2] == ("coder", "content")
    both = [call(name, None, content="yes") for name in "ab"]
    assert [joined for _, joined, _ in joins(both, *spans)] == ["none", "none"]


def test_equal_answers_join_in_order_where_each_has_its_span() -> None:
    """One after the other; of two at once nobody knows which is which, nor which of two keys was asked first."""
    calls = [call(name, None, content="yes") for name in "ab"]
    first, second = told("one", "yes", parent="planner", at=1), told("two", "yes", parent="coder", at=5)
    assert [agent for agent, _, _ in joins(calls, PLANNER, CODER, second, first)] == ["planner", "coder"]
    at_once = told("two", "yes", parent="coder", at=1)
    assert [joined for _, joined, _ in joins(calls, PLANNER, CODER, first, at_once)] == ["none", "none"]
    apart = [call(name, None, content="yes", trace_id=key * 16) for name, key in (("a", "a1"), ("b", "b2"))]
    assert [joined for _, joined, _ in joins(apart, PLANNER, CODER, first, second)] == ["none", "none"]


def test_a_text_joins_no_call_whose_equal_has_its_span() -> None:
    """The text may be a second report of the call that is joined already, or of the one that is not."""
    calls = [call(name, None, content="yes") for name in "ab"]
    spans = [PLANNER, CODER, fact("llm", LLM, parent="planner", response_id=call_id("a"))]
    spans.append(told("again", "yes", parent="coder", at=3))
    assert [joined for _, joined, _ in joins(calls, *spans)] == ["response_id", "none"]


@pytest.mark.parametrize("inner", ["client", "framework"])
def test_stacked_spans_of_one_call_are_one(inner: str) -> None:
    """Around or within the span that bears the id: the text there tells of the same call, and of no other."""
    outer = {"client": "framework", "framework": "client"}[inner]
    parents = {outer: "coder", inner: outer}
    spans = [
        told("framework", "yes", parent=parents["framework"], at=2),
        fact("client", LLM, parent=parents["client"], response_id=call_id("a")),
    ]
    calls = [call("a", None, content="yes"), call("b", None, content="yes")]
    assert [joined for _, joined, _ in joins(calls, PLANNER, CODER, *spans)] == ["response_id", "none"]


def test_a_span_that_names_another_response_joins_by_no_text() -> None:
    """It says itself that it is another's; LangChain's own run ids say nothing."""
    for response, joined_by in (("chatcmpl-else", "none"), ("lc_run--1", "content")):
        span = told("llm", "yes", parent="coder", at=1, response_id=response)
        assert joins([call("a", None, content="yes")], PLANNER, CODER, span)[0][1] == joined_by


def test_the_models_span_above_the_caller_is_the_calls() -> None:
    """An HTTP client's span under it; its text joins nothing else."""
    spans = [PLANNER, CODER, told("llm", "yes", parent="coder", at=1), fact("POST", parent="llm")]
    calls = [call("a", None, content="no", trace_id=TRACE, parent_span_id="POST"), call("b", None, content="yes")]
    assert joins(calls, *spans) == [("coder", "traceparent", "agent_span"), (None, "none", "")]


def test_a_tool_that_repeats_a_minted_id_names_the_calling_agent() -> None:
    """AutoGen and CrewAI show tools and no models."""
    tool = fact("t", TOOL, parent="coder", tool_name="calc", tool_call_id="call_a")
    assert joins([asked("a")], PLANNER, CODER, tool) == [("coder", "tool_call_id", "agent_span")]


def test_an_agent_that_is_called_as_a_tool_did_not_call_itself() -> None:
    """Its span bears its own name; the caller is above, or unknown."""
    tool = fact("t", TOOL, tool_name="coder", tool_call_id="call_a", agent_hints={"agent_attribute": "coder"})
    called = call("a", None, tool_calls=(tool_call("a", "coder"),))
    assert joins([called], PLANNER, OTHER, tool) == [(None, "tool_call_id", "")]


@pytest.mark.parametrize("rung", ["lc_agent_name", "agent_attribute"])
def test_a_hint_names_the_agent_where_no_span_is_the_agents(rung: str) -> None:
    """On the model's span or above it; nearer than an agent's span it counts before that."""
    chain = fact("chain", parent="planner", agent_hints={rung: "writer"})
    llm = fact("llm", LLM, parent="chain", response_id=call_id("a"))
    assert joins([call("a", None)], PLANNER, chain, llm) == [("writer", "response_id", rung)]


def test_an_entity_path_names_an_agent_that_something_else_names_too() -> None:
    """The path holds nodes, steps and agents alike; the last that is known as an agent counts."""
    llm = fact("llm", LLM, response_id=call_id("a"), agent_hints={"entity_path": "graph.planner.coder.model"})
    assert joins([call("a", None)], PLANNER, CODER, llm) == [("coder", "response_id", "entity_path")]
    assert joins([call("a", None)], llm) == [(None, "response_id", "")]


def test_names_that_disagree_at_one_place_name_nobody() -> None:
    """Wrong is worse than unknown, and not even the episode's only agent is taken then."""
    hints = {"lc_agent_name": "writer", "agent_attribute": "critic"}
    llm = fact("llm", LLM, parent="planner", response_id=call_id("a"), agent_hints=hints)
    assert joins([call("a", None)], PLANNER, llm) == [(None, "response_id", "conflict")]


def test_two_reports_of_a_call_under_agents_of_which_none_set_the_other_to_work_are_a_conflict() -> None:
    """If one set the other to work, the inner one called."""
    spans = [fact(f"l{n}", LLM, parent=parent, response_id=call_id("a")) for n, parent in enumerate(("coder", "other"))]
    assert joins([call("a", None)], PLANNER, CODER, OTHER, *spans) == [(None, "response_id", "conflict")]
    spans[1] = fact("l1", LLM, parent="planner", response_id=call_id("a"))
    assert joins([call("a", None)], PLANNER, CODER, OTHER, *spans) == [("coder", "response_id", "agent_span")]


def test_a_call_that_its_instrumentation_shows_outside_of_the_only_agent_is_nobodys() -> None:
    """A router's call before the agent; the same dialect shows the agent's own under it."""
    inside = fact("in", LLM, parent="planner", response_id=call_id("a"), dialect="x")
    outside = fact("out", LLM, response_id=call_id("b"), dialect="x")
    calls = [call(name, None) for name in "ab"]
    assert joins(calls, PLANNER, inside, outside) == [
        ("planner", "response_id", "agent_span"),
        (None, "response_id", ""),
    ]
    elsewhere = fact("out", LLM, response_id=call_id("b"), dialect="y")
    assert joins(calls, PLANNER, inside, elsewhere)[1] == ("planner", "response_id", "sole_agent")


def test_where_spans_are_missing_no_agent_is_the_only_one() -> None:
    """A parent of the same process that never came may be another agent's; one of another process is not awaited."""
    calls = [call("a", None, content="yes")]
    orphan = fact("x", parent="lost", parent_is_local=True)
    assert joins(calls, PLANNER, orphan) == [(None, "none", "")]
    assert joins(calls, PLANNER, fact("x", parent="runners", parent_is_remote=True))[0][0] == "planner"
    assert joins(calls, PLANNER, orphan, fact("lost", parent="planner"))[0][0] == "planner"


PLACES = ["s0", "s1", "s2", "s3", "s4", "s5", None]
SPANS = st.lists(
    st.builds(
        lambda n, kind, parent, rest, at: fact(f"s{n}", kind, parent=parent, at=at, **rest),
        st.integers(0, 5),
        st.sampled_from(list(SpanKind)),
        st.sampled_from(PLACES),
        st.sampled_from(
            [
                {"response_id": call_id("a")},
                {"agent_name": "planner"},
                {"agent_name": "coder"},
                {"output_digest": digest_of("ok")},
                {"requested_tool_call_ids": ("call_b",)},
                {"tool_call_id": "call_b", "tool_name": "calc"},
                {"agent_hints": {"lc_agent_name": "coder"}},
                {"agent_hints": {"entity_path": "planner.coder"}},
            ]
        ),
        st.integers(0, 9),
    ),
    max_size=8,
    unique_by=lambda span: span.span_id,
)


@pytest.mark.slow
@given(SPANS, st.randoms())
def test_the_order_of_spans_changes_nothing(spans: list[SpanFact], random: Any) -> None:
    """Trees, circles and lost parents of any shape."""
    calls = [call("a", None), asked("b", trace_id=TRACE, parent_span_id="s3"), call("c", None)]
    shuffled = random.sample(spans, len(spans))
    assert join_calls(calls, shuffled) == join_calls(calls, spans)


def test_agents_that_hang_under_each_other_by_the_thousand_cost_no_more_by_the_call() -> None:
    """Each names another than the one above it."""
    num = 4_000
    spans = [fact(f"s{n + 1}", AGENT, parent=f"s{n}" if n else None, agent_name=f"a{n % 2}") for n in range(num)]
    calls = [call(str(number), None, [1], trace_id=TRACE, parent_span_id=f"s{num}") for number in range(num)]
    began = time.process_time()
    assert {joined.agent for joined in join_calls(calls, spans)} == {"a1"}
    assert time.process_time() - began < 0.25
