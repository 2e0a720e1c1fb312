"""A line of a calls file becomes a call and the span that tells it; one that is none says what was expected where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.compose.history import exporting
from tests.compose.history.exporting import json_lines, spans
from tests.streams.make import otlp
from tests.streams.normalize.test_dialects import read
from tracegrad.compose.history.exports.call_lines import SCOPE, read_call_line
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.otlp.read import spans_of
from tracegrad.schemas.otlp.values import attributes_of
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.facts import SpanKind
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToldIds, ToolDefinition
from tracegrad.streams.normalize.told.read_call import told_call

SHORTEST = {"model": "gpt-4o", "messages": [{"role": "user", "content": "2+2?"}], "answer": "4"}
WEATHER = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}
CALLED = {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
WHOLE = {
    "id": "chatcmpl-1",
    "conversation": "c1",
    "agent": "solver",
    "started": "2026-03-01T12:00:00Z",
    "model": "gpt-4o",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Rome now?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALLED], "refusal": None},
        {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
    ],
    "tools": [{"type": "function", "function": WEATHER}],
    "answer": {"role": "assistant", "content": "Sunny.", "reasoning_content": "It says so."},
    "finish_reason": "stop",
    "rewards": {"correct": 1, "style": 0.5},
    "ids": {"prompt": [1, 2, 3], "sampled": [4, 5], "logprobs": [-0.5, -0.25]},
}


def span_of(said: dict[str, Any], place: str = "x.calls.jsonl:7") -> Span:
    """That tells what the line says."""
    ((_, scope, span),) = spans_of(read_call_line(json.dumps(said).encode(), place, at_ms=7))
    assert scope.scope.name == SCOPE
    return span


def call_of(said: dict[str, Any]) -> ToldCall:
    """As a replay reads it."""
    return told_call(span_of(said), SCOPE)


def test_a_line_says_what_a_request_and_its_answer_say() -> None:
    """Each field where it belongs, as it was told; nothing is lacking."""
    call = call_of(WHOLE)
    asked = ToolCall(id="call_0", name="weather", arguments='{"city": "Rome"}')
    assert call.messages == (
        ChatMessage(role="user", content="Rome now?"),
        ChatMessage(role="assistant", tool_calls=(asked,)),
        ChatMessage(role="tool", tool_call_id="call_0", content="sunny"),
    )
    assert call.answer == ChatMessage(role="assistant", content="Sunny.", reasoning="It says so.")
    assert call.tools == (ToolDefinition(**{**WEATHER, "parameters": json.dumps(WEATHER["parameters"])}),)  # type: ignore[arg-type]
    assert call.ids == ToldIds(
        prompt=ids_to_bytes([1, 2, 3]), sampled=ids_to_bytes([4, 5]), logprobs=logprobs_to_bytes([-0.5, -0.25])
    )
    assert (call.model, call.response_id, call.finish_reason, call.lacks) == ("gpt-4o", "chatcmpl-1", "stop", ())
    assert call.started_ns == call.ended_ns == 1_772_366_400 * 10**9


def test_no_tools_are_none_and_null_is_not_told() -> None:
    """As in a request; who exports from where they were not kept writes null."""
    none, unknown = call_of(SHORTEST), call_of({**SHORTEST, "tools": None})
    assert (none.tools, none.lacks, none.ids) == ((), (), None)
    assert (unknown.tools, unknown.lacks, unknown.model) == (None, ("no_tools_told",), "gpt-4o")
    assert (none.messages, none.answer) == (unknown.messages, unknown.answer)
    assert none.answer == ChatMessage(role="assistant", content="4")


def test_parts_that_are_no_text_are_counted() -> None:
    """A prompt with an image is not known by its texts."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/1.png"}}
    said = {**SHORTEST, "messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]}
    (message,) = call_of(said).messages or ()
    assert (message.content, message.num_other_parts) == ("what?", 1)


def test_a_conversation_is_one_trace() -> None:
    """Of calls with ids or without, each a span of its own; a call of none is a trace."""
    first, second = (span_of({**SHORTEST, "conversation": "c"}, f"x:{number}") for number in (1, 2))
    assert first.trace_id == second.trace_id
    assert first.span_id != second.span_id
    alone = [span_of(SHORTEST, f"x:{number}") for number in (1, 1, 2)]
    assert alone[0] == alone[1]
    assert len({span.trace_id for span in alone}) == 2


def test_the_span_of_a_line_names_agent_and_conversation_and_bears_rewards() -> None:
    """By the conventions' names, so that it is read as any other model's span."""
    span = span_of(WHOLE)
    (fact,) = read(otlp(span))
    assert (fact.kind, fact.agent_name, fact.response_id) == (SpanKind.LLM, "solver", "chatcmpl-1")
    told = attributes_of(span.attributes, {"gen_ai.conversation.id"})
    assert told == {"gen_ai.conversation.id": "c1"}
    rewards = [{pair.key: pair.value for pair in event.attributes} for event in span.events]
    assert [
        (one["gen_ai.evaluation.name"].string_value, one["gen_ai.evaluation.score.value"].double_value)
        for one in rewards
    ] == [("correct", 1.0), ("style", 0.5)]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"message": []}, "unknown field `message`"),
        ({"model": 4}, r"Expected `str`, got `int` - at `\$\.model`"),
        ({"messages": []}, r"Expected `array` of length >= 1 - at `\$\.messages`"),
        ({"messages": [{"content": "x"}]}, r"missing required field `role` - at `\$\.messages\[0\]`"),
        ({"tools": ["weather"]}, r"Expected `object`, got `str` - at `\$\.tools\[0\]`"),
        ({"answer": ["4"]}, r"Expected `str \| object`, got `array` - at `\$\.answer`"),
        ({"started": "yesterday"}, r"Invalid RFC3339 encoded datetime - at `\$\.started`"),
        ({"started": "2026-03-01T12:00:00"}, r"Expected `datetime` with a timezone component - at `\$\.started`"),
        ({"rewards": {"correct": float("nan")}}, r"Expected `float` >= .* - at `\$\.rewards"),
        ({"rewards": {"correct": "yes"}}, "Expected `float`, got `str`"),
        ({"ids": {"prompt": [1], "sampled": [1, 2], "logprobs": [-0.5]}}, r"expected 2 logprobs, got 1 - at `\$\.ids`"),
        ({"ids": {"prompt": [1], "sampled": [1], "logprobs": [0.5]}}, r"Expected `float` <= 0"),
        ({"ids": {"prompt": [2**40], "sampled": []}}, r"Expected `int` <= 2147483647 - at `\$\.ids\.prompt\[0\]`"),
    ],
)
def test_a_line_that_is_no_call_says_what_was_expected_where(changes: dict[str, Any], error: str) -> None:
    """A misspelt key too, which would be a call without tools."""
    with pytest.raises(RecordError, match=error):
        span_of({**SHORTEST, **changes})


def test_lines_of_a_calls_file_lie_beside_files_of_spans(tmp_path: Path) -> None:
    """Bad ones are told by their numbers and cost no other."""
    good = json.dumps(SHORTEST)
    (tmp_path / "a.calls.jsonl").write_text(f'{good}\n\n{{"model": 1}}\n{good[:-3]}\n{good}\n')
    (tmp_path / "b.json").write_bytes(json_lines([spans(0)]))
    found, damage = exporting.read(tmp_path)
    assert [one.place for one in found] == [("a.calls.jsonl", 1), ("a.calls.jsonl", 5), ("b.json", 1)]
    assert [one.place.item for one in damage] == [3, 4]
    assert damage[0].num_bytes == 12
    assert "expected a call in OpenAI's chat form" in damage[0].why
    first, second = (next(iter(spans_of(one.request)))[2].trace_id for one in found[:2])
    assert first != second
