"""Model's spans that repeat no id: joined by what else both say of one answer, and not at all where two would fit."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.assemble.join.joins import join_calls
from tests.streams.assemble.join.test_join import TRACE, fact
from tests.streams.make import call, call_id
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.facts import SpanFact, SpanKind, digest_of

NORTH = fact("north", SpanKind.AGENT, agent_name="north", end_ns=99)
SOUTH = fact("south", SpanKind.AGENT, agent_name="south", end_ns=99)


def model(name: str, parent: str, begin: int, end: int, **rest: Any) -> SpanFact:
    """A model's span that names no response."""
    return fact(name, SpanKind.LLM, parent=parent, at=begin, end_ns=end, **rest)


def sent(name: str, begin: int, end: int) -> SpanFact:
    """The HTTP client's span of a request, in a trace of its own."""
    return fact(f"POST {name}", at=begin, end_ns=end, trace_id=name * 32)


def asked(name: str, content: str | None = "yes", **rest: Any) -> CallRecord:
    """A call whose request named its client's span."""
    return call(name, None, content=content, trace_id=name * 32, parent_span_id=f"POST {name}", **rest)


def agents(calls: list[CallRecord], *spans: SpanFact) -> list[str | None]:
    """Of each call."""
    return [joined.agent for joined in join_calls(calls, (NORTH, SOUTH, *spans))]


def test_equal_answers_join_where_their_requests_were_sent() -> None:
    """A request lies within its model's span by the agent's own clock, whatever the gateway's says."""
    text = digest_of("yes")
    spans = [model("one", "north", 0, 9, output_digest=text), model("two", "south", 5, 20, output_digest=text)]
    calls = [asked("a"), asked("b")]
    assert agents(calls, *spans, sent("a", 1, 8), sent("b", 10, 19)) == ["north", "south"]
    assert agents(calls, *spans, sent("a", 6, 8), sent("b", 6, 8)) == [None, None]
    # One that can be of one alone leaves the other to the other.
    assert agents(calls, *spans, sent("a", 6, 8), sent("b", 10, 19)) == ["north", "south"]


def test_equal_answers_join_by_their_tokens() -> None:
    """Prompts of two agents differ in length; numbers that a span does not tell exclude nothing and say nothing."""
    calls = [call("a", None, [1, 2, 3], [7], content="yes"), call("b", None, [1, 2], [7], content="yes")]
    spans = [
        model("one", "north", 0, 9, input_tokens=2, output_tokens=1),
        model("two", "south", 0, 9, input_tokens=3, output_tokens=1),
    ]
    assert agents(calls, *spans) == ["south", "north"]
    assert agents(calls, *(model(name, name, 0, 9) for name in ("north", "south"))) == [None, None]
    same = [call(name, None, [1, 2], [7], content="yes") for name in "ab"]
    assert agents(same, *spans) == [None, None]


def test_a_place_alone_counts_only_where_it_accounts_for_all() -> None:
    """A span too many may be another model's at the time of a client without spans."""
    calls, requests = [asked("a"), asked("b", "no")], [sent("a", 1, 8), sent("b", 11, 18)]
    spans = [model("one", "north", 0, 9), model("two", "south", 10, 19)]
    assert agents(calls, *spans, *requests) == ["north", "south"]
    assert agents(calls, *spans, *requests, model("other", "south", 30, 39)) == [None, None]
    assert agents([*calls, asked("c")], *spans, *requests, sent("c", 50, 51)) == [None, None, None]


def test_one_after_the_other_by_both_clocks() -> None:
    """Calls of several keys have no order on the log; the gateway's own times order them, if they do not overlap."""
    text = digest_of("yes")
    spans = [model("one", "north", 0, 9, output_digest=text), model("two", "south", 10, 19, output_digest=text)]

    def at(name: str, begin: int, end: int) -> CallRecord:
        return call(name, None, content="yes", trace_id=name * 32, started_at_ns=begin, ended_at_ns=end)

    assert agents([at("b", 7010, 7015), at("a", 7000, 7005)], *spans) == ["south", "north"]
    assert agents([at("b", 7003, 7015), at("a", 7000, 7005)], *spans) == [None, None]


def test_a_call_that_goes_on_from_an_agents_is_that_runs() -> None:
    """Of two that fit; where only another agent's fits, who handed over may not be who answers."""
    text = digest_of("yes")
    first = fact("first", SpanKind.LLM, parent="north", response_id=call_id("f"))
    calls = [call("f", None, content="go"), asked("a", parent_call_id=call_id("f")), asked("b")]
    requests = [sent("a", 6, 8), sent("b", 6, 8)]
    spans = [model("one", "north", 5, 9, output_digest=text), model("two", "south", 5, 9, output_digest=text)]
    assert agents(calls, first, *spans, *requests) == ["north", "north", "south"]


def test_two_agents_at_work_do_not_fit() -> None:
    """The request was sent from within one agent's span, the answer told under another's."""
    request = fact("POST a", parent="south", at=1, end_ns=8)
    made = call("a", None, [1], [7], trace_id=TRACE, parent_span_id="POST a")
    joined = join_calls([made], (NORTH, SOUTH, request, model("one", "north", 0, 9, input_tokens=1, output_tokens=1)))
    assert [(one.agent, one.joined_by) for one in joined] == [("south", "traceparent")]


@given(st.permutations(range(6)), st.permutations(range(3)))
def test_the_order_does_not_matter(order: list[int], of_calls: list[int]) -> None:
    """Neither of the spans, nor of calls whose gateway's times say nothing."""
    text = digest_of("yes")
    names = ("north", "south", "south")
    spans = [model(f"m{n}", name, n, 9 + n, output_digest=text) for n, name in enumerate(names)]
    spans += [sent(name, 1 + n, 8 + n) for n, name in enumerate("abc")]
    calls = [asked(name) for name in "abc"]
    found = agents([calls[n] for n in of_calls], *(spans[n] for n in order))
    known = dict(zip((calls[n].call_id for n in of_calls), found, strict=True))
    assert known == dict(zip((one.call_id for one in calls), agents(calls, *spans), strict=True))


@pytest.mark.slow
def test_many_alike_cost_little() -> None:
    """Spans that all fit all calls are left alone in little time."""
    spans = [model(f"m{n}", "north", n, 10**6, input_tokens=1, output_tokens=1) for n in range(16_000)]
    calls = [call(f"c{n}", None, [1], [7], trace_id="ab" * 16, parent_span_id="POST") for n in range(16_000)]
    began = time.perf_counter()
    assert set(agents(calls, *spans, fact("POST", at=5000, end_ns=5001, trace_id="ab" * 16))) == {None}
    assert time.perf_counter() - began < 5


@pytest.mark.slow
def test_many_calls_that_fit_few_spans_cost_little() -> None:
    """An agent that says the same a thousand times, of which a few spans are kept."""
    spans = [model(f"m{n}", "north", n, n + 1, output_digest=digest_of("yes")) for n in range(64)]
    calls = [call(f"c{n}", None, content="yes", trace_id=None) for n in range(1500)]
    began = time.perf_counter()
    assert set(agents(calls, *spans)) == {None}
    assert time.perf_counter() - began < 5


@pytest.mark.slow
def test_a_long_chain_of_likeness_costs_little() -> None:
    """Each call is like the one before by its text, or by its tokens, so that each pair follows from another."""
    most, calls, spans = 8000, [], []
    for n in range(most):
        text, prompt = f"text {n // 2}", [1] * (1 + (n + 1) // 2 % 90)
        sampled = [7] * (1 + (n + 1) // 180)
        calls.append(call(f"c{n}", None, prompt, sampled, content=text, trace_id=None))
        tokens = {"input_tokens": len(prompt), "output_tokens": len(sampled)}
        told = {"output_digest": digest_of(text)} if n % 2 else tokens
        spans.append(model(f"m{n}", "north" if n % 4 else "south", n, n + 1, **told))
    began = time.perf_counter()
    joined = join_calls(calls, (NORTH, SOUTH, *spans))
    assert [one.agent for one in joined[:5]] == ["south", "north", "north", "north", "south"]
    assert {one.joined_by for one in joined} == {"content"}
    assert time.perf_counter() - began < 5
