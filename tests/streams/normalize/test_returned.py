"""What a tool returned stays on the log, bounded, whichever dialects its span speaks; and the status of HTTP spans."""

from __future__ import annotations

import json

import pytest

from tests.streams.make import otlp, span
from tests.streams.normalize.test_dialects import TRACE, read
from tests.streams.normalize.test_tool_outcomes import genai, langchain
from tracegrad.schemas.records.facts import MAX_RESULT, SpanFact
from tracegrad.streams.normalize.reading.returned import result_of


def told(**fields: object) -> SpanFact:
    """The fact of one span."""
    (fact,) = read(otlp(span(TRACE, 1, **fields)))  # type: ignore[arg-type]
    return fact


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (genai("42"), "42"),
        (genai({"rows": [1, 2]}), '{"rows": [1, 2]}'),
        (genai(), None),
        (genai(""), None),
        (langchain("It is sunny."), "It is sunny."),
        (langchain("__REDACTED__"), None),
        ({**genai("42"), **langchain("42")}, "42"),
        ({"gen_ai__operation__name": "chat", "gen_ai__tool__call__result": "42"}, None),
    ],
)
def test_a_tools_span_tells_its_result(fields: dict[str, object], expected: str | None) -> None:
    """None where its content is hidden, or the span is no tool's."""
    fact = told(**fields)
    assert (fact.tool_result, fact.is_result_cut) == (expected, False)


def test_a_long_result_is_cut_and_says_so() -> None:
    """By characters, whatever bytes they take."""
    fact = told(**genai("\N{SNOWMAN}" * (MAX_RESULT + 1)))
    assert (fact.tool_result, fact.is_result_cut) == ("\N{SNOWMAN}" * MAX_RESULT, True)
    fact = told(**genai("x" * MAX_RESULT))
    assert (fact.tool_result, fact.is_result_cut) == ("x" * MAX_RESULT, False)


def test_the_form_without_wrapping_stands_in_any_order() -> None:
    """Two dialects hold it in two forms, one within the framework's own message."""
    forms = ["sunny", {"content": "sunny", "id": "call_1"}]
    assert result_of(forms) == result_of(forms[::-1]) == ("sunny", False)


def test_what_no_json_can_hold_is_no_result() -> None:
    """And a lone surrogate, that no record can hold, is replaced."""
    assert result_of([float, {1: object()}]) == (None, False)
    assert result_of([json.loads('"\\ud800"')]) == ("?", False)


@pytest.mark.parametrize(
    ("value", "expected"), [(200, 200), (503, 503), ("404", 404), (99, None), (600, None), (True, None), ("4x4", None)]
)
def test_an_http_spans_status_is_read(value: object, expected: int | None) -> None:
    """By the new name of the attribute and the old one."""
    assert told(http__response__status_code=value).http_status == expected
    assert told(http__status_code=value).http_status == expected


def test_a_number_of_tokens_that_is_a_truth_value_is_none() -> None:
    """A fact that held `true` for a number could not be read back, and would end each worker that read it."""
    fields = {"gen_ai__operation__name": "chat", "gen_ai__usage__input_tokens": True}
    fact = told(**fields)
    assert (fact.kind, fact.input_tokens) == ("llm", None)
