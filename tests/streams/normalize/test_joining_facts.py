"""What facts bear by which a span without a response id finds its call, and a call its agent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.make import otlp, span
from tests.streams.normalize.test_dialects import DATA, TRACE, read
from tracegrad.schemas.records.facts import SpanFact, SpanKind, digest_of
from tracegrad.streams.normalize.reading.agent_hints import agent_hints
from tracegrad.streams.normalize.reading.read_output import NOTHING, of_flat, of_messages

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("parts", "type", "content", "text", "id", "tool_calls", "x")), inner, max_size=4
        )
    ),
    max_leaves=12,
)


def fact(**attributes: Any) -> SpanFact:
    """One span's fact."""
    (found,) = read(otlp(span(TRACE, 1, **attributes)))
    return found


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "parts": [{"type": "text", "content": " 42\n"}, {"type": "tool_call", "id": "call_1"}]}],
        [{"role": "assistant", "content": "42", "tool_calls": [{"id": "call_1"}, {"id": "call_1"}]}],
        [{"role": "assistant", "content": [{"type": "text", "text": "42"}, {"type": "tool_use", "id": "call_1"}]}],
    ],
    ids=["parts", "openai", "anthropic"],
)
def test_an_answer_is_known_by_its_text_and_the_ids_that_it_asks_for(messages: Any) -> None:
    """In OpenTelemetry's form and in the APIs' own."""
    found = fact(gen_ai__operation__name="chat", gen_ai__output__messages=json.dumps(messages))
    assert (found.output_digest, found.requested_tool_call_ids) == (digest_of("42"), ("call_1",))


def test_of_several_answers_nothing_is_told() -> None:
    """Nobody knows with which one the agent went on."""
    answer = {"role": "assistant", "content": "42"}
    assert of_messages([answer, answer]) == NOTHING
    flat = {f"llm.output_messages.{n}.message.content": "42" for n in (0, 1)}
    assert of_flat(flat) == NOTHING
    assert of_flat({"llm.output_messages.0.message.content": "42"}) == (digest_of("42"), ())


def test_an_answer_that_its_span_cut_is_known_by_its_ids_alone() -> None:
    """A text that lost its end equals no call's."""
    cut = span(
        TRACE,
        1,
        openinference__span__kind="LLM",
        llm__output_messages__0__message__content="4",
        llm__output_messages__0__message__tool_calls__0__tool_call__id="call_1",
    )
    cut.dropped_attributes_count = 1
    (found,) = read(otlp(cut))
    assert (found.output_digest, found.requested_tool_call_ids) == (None, ("call_1",))


def test_recorded_openinference_spans_repeat_the_ids_that_they_asked_for() -> None:
    """Recorded from a LangGraph agent: its model's spans name the minted ids, and the agent's name nowhere."""
    facts = read((DATA / "openinference_langchain_0.1.80.otlp").read_bytes())
    asked = [
        fact.requested_tool_call_ids for fact in facts if fact.kind is SpanKind.LLM and fact.dialect != "otel_genai"
    ]
    assert asked == [(f"call_{n:024x}",) for n in (1, 2)]


@pytest.mark.parametrize(
    ("attributes", "hints"),
    [
        ({"gen_ai__agent__name": "solver"}, {"agent_attribute": "solver"}),
        ({"gen_ai__agent__name": "solver", "agent__name": "critic"}, {}),
        ({"gen_ai__agent__name": "LangGraph"}, {}),
        ({"metadata": '{"lc_agent_name": "solver", "thread_id": 1}'}, {"lc_agent_name": "solver"}),
        ({"langsmith__metadata__lc_agent_name": "solver"}, {"lc_agent_name": "solver"}),
        ({"metadata": '{"lc_agent_name": '}, {}),
    ],
    ids=["attribute", "two_names", "wrapper", "langchain", "langsmith", "broken_json"],
)
def test_a_span_hints_at_its_agent(attributes: dict[str, Any], hints: dict[str, str]) -> None:
    """By attributes of any convention; a wrapper's name and two names at once hint at nothing."""
    assert fact(**attributes).agent_hints == hints


@pytest.mark.parametrize(
    ("flags", "kind", "is_remote"), [(0x300, 1, True), (0x100, 2, False), (0, 2, True), (1, 1, False)]
)
def test_a_remote_parent_is_told_by_the_flags_else_by_the_kind(flags: int, kind: Any, is_remote: bool) -> None:
    """Old SDKs set no flags; who serves was called from elsewhere. A root has no parent."""
    made = span(TRACE, 1, parent=2)
    made.flags, made.kind = flags, kind
    root = span(TRACE, 3)
    root.flags, root.kind = flags, kind
    assert [fact.parent_is_remote for fact in read(otlp(made, root))] == [is_remote, False]


@pytest.mark.slow
@given(ODD)
def test_odd_values_tell_nothing_and_raise_nothing(value: Any) -> None:
    """Whatever stands in a span; ids stay few and short."""
    for given_value in (value, json.dumps(value), [value], {"metadata": value, "agent.name": value}):
        digest, ids = of_messages(given_value)
        assert digest is None or len(digest) == 32
        assert len(ids) <= 16
    assert all(isinstance(name, str) for name in agent_hints({"metadata": value, "agent.name": value}).values())
