"""Several dialects on one span become one meaning, whatever their order; no span makes a dialect raise."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.make import call_id, otlp, pairs
from tests.streams.normalize.test_dialect_table import ROWS, spoken
from tests.streams.normalize.test_dialects import TRACE, read
from tracegrad.schemas.ids import new_tool_call
from tracegrad.schemas.records.facts import SpanKind, ToolStatus
from tracegrad.streams.normalize.dialects.dialect import WRAPPER, SpanReading
from tracegrad.streams.normalize.dialects.merge import SpanMeaning, merge
from tracegrad.streams.normalize.read_spans import DIALECTS
from tracegrad.streams.normalize.reading.judge_tool import ToolJudge
from tracegrad.streams.normalize.reading.span_view import SpanView

MINTED = call_id("a")
MINTED_TOOL = new_tool_call(TRACE, lambda _: 7)
LLM, TOOL, AGENT = SpanKind.LLM, SpanKind.TOOL, SpanKind.AGENT


def view(**changes: Any) -> SpanView:
    """A span as dialects see it."""
    plain: dict[str, Any] = {"name": "x", "attributes": {}, "status": 0, "has_exception": False, "is_cut": False}
    return SpanView(**{**plain, **changes})


def merged(*readings: SpanReading, **changes: Any) -> SpanMeaning:
    """Their one meaning, which no order changes."""
    named = [(f"d{number}", reading) for number, reading in enumerate(readings)]
    found = {merge(view(**changes), dict(order), ToolJudge()) for order in permutations(named)}
    assert len(found) == 1
    dialect, meaning = found.pop()
    assert dialect == "+".join(name for name, _ in named)
    return meaning


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((SpanKind.OTHER, AGENT), AGENT),
        ((AGENT, LLM), LLM),
        ((LLM, TOOL, SpanKind.OTHER), TOOL),
    ],
)
def test_the_most_specific_kind_counts(kinds: tuple[SpanKind, ...], expected: SpanKind) -> None:
    """A chain in one convention may be an agent in another."""
    assert merged(*(SpanReading(kind=kind) for kind in kinds)).kind is expected


def test_who_knows_better_is_believed() -> None:
    """A workflow that says `invoke_agent` is none, and nothing else of it counts."""
    meaning = merged(SpanReading(kind=AGENT, agent_name="pipeline"), WRAPPER)
    assert (meaning.kind, meaning.agent_name) == (SpanKind.OTHER, None)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((MINTED, None), MINTED),
        (("run--1", MINTED), MINTED),
        (("run--1", "run--2"), None),
        ((MINTED, call_id("b")), None),
        ((MINTED, MINTED), MINTED),
    ],
    ids=["one", "minted", "none_minted", "two_minted", "same"],
)
def test_of_two_response_ids_the_minted_one_counts(ids: tuple[str | None, ...], expected: str | None) -> None:
    """Frameworks put their own ids there; two that gateways minted are a contradiction."""
    assert merged(*(SpanReading(kind=LLM, response_id=id_) for id_ in ids)).response_id == expected


def test_names_by_attributes_beat_names_by_spans() -> None:
    """A span's name is written for people; two attributes that differ say nothing."""
    guessed = SpanReading(kind=TOOL, tool_name="SimpleTool", is_guess=True)
    assert merged(guessed, SpanReading(kind=TOOL, tool_name="f")).tool_name == "f"
    assert merged(guessed).tool_name == "SimpleTool"
    assert merged(SpanReading(kind=AGENT, agent_name="a"), SpanReading(kind=AGENT, agent_name="b")).agent_name is None


def test_of_two_tool_call_ids_the_minted_one_counts() -> None:
    """AgentOps and LangChain number calls on their own."""
    meaning = merged(SpanReading(kind=TOOL, tool_call_id="1"), SpanReading(kind=TOOL, tool_call_id=MINTED_TOOL))
    assert meaning.tool_call_id == MINTED_TOOL


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ((("42",), ()), ToolStatus.SUCCEEDED),
        ((("42", "Error: x"), ()), ToolStatus.FAILED),
        ((('{"success": true}', "Error: x"), ()), ToolStatus.UNKNOWN),
        (((), ("success",)), ToolStatus.SUCCEEDED),
        ((("Error: x",), ("success",)), ToolStatus.FAILED),
        ((("42",), ("success", "error")), ToolStatus.FAILED),
    ],
    ids=["quiet", "one_fails", "disputed", "declared", "mild", "declared_failure"],
)
def test_a_tool_s_outcome_is_judged_of_all_that_is_said(
    readings: tuple[tuple[str, ...], tuple[str, ...]], expected: ToolStatus
) -> None:
    """Each dialect may hold another form of the result."""
    results, declared = readings
    spoken = [SpanReading(kind=TOOL, tool_name="f", results=(result,)) for result in results]
    spoken += [SpanReading(kind=TOOL, tool_name="f", declared=(said,)) for said in declared]
    assert merged(*spoken).tool_status is expected


def test_a_cut_span_has_no_digest() -> None:
    """A text that lost its end equals no call's."""
    assert merged(SpanReading(kind=LLM, output=("ab", ())), is_cut=True).output_digest is None


SCALARS = st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=8)
WORDS = (
    "parts",
    "type",
    "content",
    "text",
    "id",
    "tool_calls",
    "choices",
    "message",
    "kwargs",
    "output",
    "generations",
)
ODD = st.recursive(
    SCALARS | st.sampled_from([MINTED, MINTED_TOOL, "tool", "error", "function_call"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=10,
)
VALUES = (
    ODD
    | ODD.map(json.dumps)
    | st.sampled_from(["[" * 100_000, '{"a":' * 50_000, "\ud800".encode("utf-8", "replace").decode()])
)
KEYS = sorted(set().union(*(dialect.marks | dialect.keys for dialect in DIALECTS)))
EVENTS = [(name, sorted(keys)) for dialect in DIALECTS for name, keys in dialect.events.items()]
NAMES = sorted({row[0] for row in ROWS.values()} | {name for dialect in DIALECTS for name in dialect.names})
KNOWN = [attributes for _, attributes, _ in ROWS.values() if attributes]


@pytest.mark.slow
@given(st.data())
def test_no_dialect_raises_for_odd_values(data: st.DataObject) -> None:
    """Any value under any key that some dialect reads, on any span's name: each dialect reads or leaves it."""
    attributes = dict(data.draw(st.sampled_from(KNOWN)))
    attributes |= data.draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
    events = {name: data.draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=3)) for name, keys in EVENTS}
    seen = view(
        name=data.draw(st.sampled_from(NAMES) | st.text(max_size=20)),
        attributes=attributes,
        events=events,
        is_server=data.draw(st.booleans()),
        hints=data.draw(st.dictionaries(st.just("lc_agent_name"), st.text(min_size=1, max_size=5))),
    )
    readings = {dialect.name: found for dialect in DIALECTS if (found := dialect.read(seen)) is not None}
    _, meaning = merge(seen, readings, ToolJudge())
    texts = (meaning.agent_name, meaning.response_id, meaning.tool_name, meaning.tool_call_id)
    assert all(text is None or (isinstance(text, str) and len(text) <= 200) for text in texts)
    assert len(meaning.requested_tool_call_ids) <= 16


@pytest.mark.slow
@pytest.mark.parametrize("content", ["x", '"id": "', "[", '{"content": ', "error ", "a.run."])
def test_a_huge_attribute_is_read_or_left_in_bounded_time(content: str) -> None:
    """As long as is parsed at all, and longer: no pattern and no parser goes over it more than a few times."""
    for length in (999_000, 1_100_000):
        huge = content * (length // len(content))
        for kind in ("LLM", "TOOL"):
            attributes = {"openinference.span.kind": kind, "output.value": huge, "gen_ai.completion.0.content": huge}
            assert len(read(otlp(spoken(content * 1000, attributes)))) == 1


def test_a_span_s_events_are_read_one_of_a_name() -> None:
    """Thousands of them cost no more memory than one."""
    made = spoken("chat", {"gen_ai.operation.name": "chat"})
    for number in range(500):
        made.events.add(name="gen_ai.choice", attributes=pairs({"message": str(number), "index": number}))
    assert read(otlp(made))[0].kind is LLM
