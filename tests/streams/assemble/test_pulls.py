"""Calls of a captured agent whose client propagates nothing come to the trace whose spans repeat their answers' ids."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import any_seed
from tests.streams.assemble.test_links import captured, close, episodes, llm, markers, streams
from tests.streams.make import Item, agent_span, otlp, span, tool_span
from tracegrad.schemas.ids import conversation_key, new_call, new_tool_call
from tracegrad.schemas.metrics import LINKS
from tracegrad.schemas.records.calls import CallRecord, ToolCall
from tracegrad.schemas.records.facts import MAX_LINKS, LinkFact, LinkSource
from tracegrad.streams.assemble.links import Links

TRACE = "ab" * 16
FIRST, SECOND = captured("c1" * 16, "one"), captured("c2" * 16, "two")
HTTP = otlp(span("c2" * 16, 7, "POST"))
"""The client's own span, in a trace of its own."""
PARTS: list[Item] = [
    FIRST,
    SECOND,
    HTTP,
    otlp(agent_span(TRACE, 1, "planner"), llm(TRACE, 2, FIRST.call_id, parent=1)),
    otlp(agent_span(TRACE, 3, "expert", parent=1), llm(TRACE, 4, SECOND.call_id, parent=3)),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::7])
def test_calls_of_several_keys_come_to_the_trace_that_tells_of_them(order: tuple[int, ...]) -> None:
    """One episode with each call's agent, in whatever order calls and spans come."""
    run = streams()
    run.feed(*(PARTS[number] for number in order))
    close(run)
    episode = run.episode
    assert episode.num_spans == 5
    agents = {made.call_id: made.agent for made in episode.calls}
    assert agents == {FIRST.call_id: "planner", SECOND.call_id: "expert"}


KEYS = tuple(f"{number:032x}" for number in range(1, 5))
SAID = tuple(captured(key, f"said-{number}") for number, key in enumerate(KEYS))
FOUR: list[Item] = [
    *SAID,
    *(otlp(llm(TRACE, 2 + number, one.call_id, parent=1)) for number, one in enumerate(SAID)),
    otlp(agent_span(TRACE, 1, "planner")),
]


@given(st.permutations(FOUR))
@settings(max_examples=60, deadline=None)
def test_each_further_key_is_asked_as_the_first_two_were(items: list[Item]) -> None:
    """Four calls, each of a key of its own, and five spans of one trace: one episode, whatever calls are there before a
    key is named."""
    run = streams()
    run.feed(*items)
    close(run)
    episode = run.episode
    assert {made.call_id for made in episode.calls} == {one.call_id for one in SAID}


def test_a_named_conversation_is_not_pulled_into_a_trace() -> None:
    """Its client said what it belongs to; nor is a call that nobody made."""
    key = conversation_key("c-17")
    named = captured(key, "named", conversation_key=key)
    run = streams()
    run.feed(FIRST, named, otlp(llm(TRACE, 1, FIRST.call_id), llm(TRACE, 2, named.call_id, parent=1)))
    run.feed(otlp(llm(TRACE, 3, new_call("c3" * 16), parent=1)))
    close(run)
    assert key in episodes(run) and [made.call_id for made in episodes(run)[key].calls] == [named.call_id]
    assert markers(run)["c1" * 16] == f"forwarded {TRACE}"


def asking(one: CallRecord, **changes: Any) -> CallRecord:
    """With a tool call whose id bears its key."""
    made = new_tool_call(str(one.trace_id))
    return msgspec.structs.replace(one, tool_calls=(ToolCall(id=made, name="calc", arguments="{}"),), **changes)


def test_in_streams_the_ids_of_tool_calls_bring_the_calls() -> None:
    """LangChain loses the answer's id there; the calls of several keys are in the order in which they began."""
    asked = [asking(FIRST, started_at_ns=20), asking(SECOND, started_at_ns=10)]
    spans = [
        llm(TRACE, 2 + number, "lc_run--1", parent=1, gen_ai__output__messages=_asking(one.tool_calls[0].id))
        for number, one in enumerate(asked)
    ]
    run = streams()
    run.feed(*asked, HTTP, otlp(agent_span(TRACE, 1, "planner"), *spans))
    close(run)
    episode = run.episode
    assert [made.call_id for made in episode.calls] == [SECOND.call_id, FIRST.call_id]
    assert [(made.agent, made.joined_by) for made in episode.calls] == [("planner", "content")] * 2


def _asking(minted: str) -> str:
    part = {"type": "tool_call", "id": minted, "name": "calc", "arguments": {}}
    return json.dumps([{"role": "assistant", "parts": [part]}])


def test_calls_that_their_own_trace_tells_of_are_not_pulled_away() -> None:
    """Their client propagated; a trace that repeats the ids of two conversations gets neither."""
    first, second = (captured(key, "one", parent_span_id=f"{2:016x}") for key in ("c1" * 16, "c2" * 16))
    run = streams()
    for one in (first, second):
        trace = str(one.trace_id)
        run.feed(one, otlp(agent_span(trace, 1, "own", parent=5), llm(trace, 2, one.call_id, parent=1)))
    run.feed(otlp(llm(TRACE, 2, first.call_id, parent=1), llm(TRACE, 3, second.call_id, parent=1)))
    close(run)
    assert all(len(episodes(run)[str(one.trace_id)].calls) == 1 for one in (first, second))


def test_executions_bring_the_calls_whose_models_spans_repeat_nothing() -> None:
    """ADK and Strands without the HTTP client's instrumentor: the tools of two agents name two keys."""
    asked = [asking(FIRST), asking(SECOND)]
    ran = [
        tool_span(TRACE, 2 + number, parent=1, gen_ai__tool__call__id=one.tool_calls[0].id)
        for number, one in enumerate(asked)
    ]
    run = streams()
    run.feed(*asked, otlp(agent_span(TRACE, 1, "planner"), *ran))
    close(run)
    episode = run.episode
    assert {(made.agent, made.joined_by) for made in episode.calls} == {("planner", "tool_call_id")}
    assert [len(made.tools) for made in episode.calls] == [1, 1]


@pytest.mark.parametrize("is_spans_first", [True, False])
def test_a_hundred_and_thirty_keys_come_to_one_trace(is_spans_first: bool) -> None:
    """As many as a long run of parallel agents names; nothing is lost without a word."""
    said = [captured(f"{number:032x}", f"said-{number}") for number in range(1, 131)]
    spans: list[Item] = [otlp(llm(TRACE, 2 + number, one.call_id, parent=1)) for number, one in enumerate(said)]
    root: Item = otlp(agent_span(TRACE, 1, "planner"))
    run = streams()
    run.feed(*([*spans, root, *said] if is_spans_first else [root, *said, *spans]))
    close(run)
    episode = run.episode
    assert (len(episode.calls), episode.are_links_cut) == (130, False)


@any_seed
def test_of_too_many_links_the_same_are_kept_in_any_order(seed: int) -> None:
    """And that there were more is told, however often they come."""
    named = [
        LinkFact(trace_id=TRACE, key=f"{number:032x}", source=LinkSource.ID, minted_id=f"call_{number}")
        for number in range(MAX_LINKS + 50)
    ]
    links = Links()
    for link in random.Random(seed).choices(named, k=3 * len(named)) + named:
        links.add_link(link, TRACE)
    assert (links.away, links.are_cut) == (tuple(named[:MAX_LINKS]), True)


def test_a_trace_that_names_too_many_says_so() -> None:
    """On its episode, and by a count in both stages."""
    ids = [new_call(f"{number:032x}") for number in range(1, MAX_LINKS + 30)]
    run = streams()
    run.feed(otlp(*(llm(TRACE, 2 + number, one, parent=1) for number, one in enumerate(ids[:1010]))))
    assert run.normalize.metrics.value(LINKS, "left_out") == 10
    run.feed(
        otlp(
            agent_span(TRACE, 1, "planner"), *(llm(TRACE, 2000 + n, one, parent=1) for n, one in enumerate(ids[1010:]))
        )
    )
    close(run)
    assert run.assemble.metrics.value(LINKS, "too_many") == 1
