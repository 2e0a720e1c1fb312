"""A line of a calls file becomes a call and the span that tells it; one that is none says what was expected where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.compose.history.exporting import json_lines, read, spans
from tracegrad.compose.history.call_lines import SCOPE, TOLD_CALL, CallLine, read_call_line
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.otlp.read import spans_of
from tracegrad.schemas.otlp.values import attributes_of
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToldIds, ToolDefinition

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
        {"role": "user", "content": [{"type": "text", "text": "Rome "}, {"type": "text", "text": "now?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALLED], "refusal": None},
        {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
    ],
    "tools": [{"type": "function", "function": WEATHER}],
    "answer": {"role": "assistant", "content": "Sunny.", "reasoning_content": "It says so."},
    "finish_reason": "stop",
    "rewards": {"correct": 1, "style": 0.5},
    "ids": {"prompt": [1, 2, 3], "sampled": [4, 5], "logprobs": [-0.5, -0.25]},
}


def line_of(said: dict[str, Any], place: str = "x.calls.jsonl:7") -> CallLine:
    """What is read of it."""
    return read_call_line(json.dumps(said).encode(), place, at_ms=7)


def test_a_line_says_what_a_request_and_its_answer_say() -> None:
    """Each field where it belongs, as it was told."""
    line = line_of(WHOLE)
    asked = ToolCall(id="call_0", name="weather", arguments='{"city": "Rome"}')
    assert line.call.messages == (
        ChatMessage(role="user", content="Rome now?"),
        ChatMessage(role="assistant", tool_calls=(asked,)),
        ChatMessage(role="tool", tool_call_id="call_0", content="sunny"),
    )
    assert line.call.answer == ChatMessage(role="assistant", content="Sunny.", reasoning="It says so.")
    assert line.call.tools == (ToolDefinition(**WEATHER),)  # type: ignore[arg-type]
    assert line.call.ids == ToldIds(
        prompt=ids_to_bytes([1, 2, 3]), sampled=ids_to_bytes([4, 5]), logprobs=logprobs_to_bytes([-0.5, -0.25])
    )
    assert (line.call.scope, line.call.response_id, line.call.finish_reason) == (SCOPE, "chatcmpl-1", "stop")
    assert line.call.started_ns == 1_772_366_400 * 10**9
    assert (line.conversation, line.agent, line.rewards) == ("c1", "solver", {"correct": 1, "style": 0.5})


def test_no_tools_are_none_and_null_is_not_told() -> None:
    """As in a request; who exports from where they were not kept writes null."""
    assert line_of(SHORTEST).call.tools == ()
    assert line_of({**SHORTEST, "tools": None}).call.tools is None


def test_parts_that_are_no_text_are_counted() -> None:
    """A prompt with an image is not known by its texts."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/1.png"}}
    said = {**SHORTEST, "messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]}
    (message,) = line_of(said).call.messages or ()
    assert (message.content, message.num_other_parts) == ("what?", 1)


def test_a_conversation_is_one_trace() -> None:
    """Of calls with ids or without, each a span of its own; a call of none is a trace."""
    first, second = (line_of({**SHORTEST, "conversation": "c"}, f"x:{number}").call for number in (1, 2))
    assert first.trace_id == second.trace_id
    assert first.span_id != second.span_id
    alone = [line_of(SHORTEST, f"x:{number}").call for number in (1, 1, 2)]
    assert alone[0] == alone[1]
    assert len({call.trace_id for call in alone}) == 2


def test_the_span_of_a_line_bears_the_call() -> None:
    """Whole, and by the conventions' names what whoever looks at spans looks for."""
    line = line_of(WHOLE)
    ((_, scope, span),) = spans_of(line.request())
    told = attributes_of(span.attributes, {pair.key for pair in span.attributes})
    assert (scope.scope.name, span.trace_id.hex(), span.span_id.hex()) == (SCOPE, line.call.trace_id, line.call.span_id)
    assert msgspec.json.decode(str(told.pop(TOLD_CALL)), type=ToldCall) == line.call
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.agent.name": "solver",
        "gen_ai.conversation.id": "c1",
        "gen_ai.response.id": "chatcmpl-1",
    }
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
        ({"tools": [{"name": "weather"}]}, r"missing required field `function` - at `\$\.tools\[0\]`"),
        ({"started": "yesterday"}, r"Invalid RFC3339 encoded datetime - at `\$\.started`"),
        ({"started": "2026-03-01T12:00:00"}, r"Expected `datetime` with a timezone component - at `\$\.started`"),
        ({"rewards": {"correct": float("nan")}}, "expected finite rewards"),
        ({"rewards": {"correct": "yes"}}, "Expected `float`, got `str`"),
        ({"ids": {"prompt": [1], "sampled": [1, 2], "logprobs": [0.5]}}, "expected 2 logprobs, got 1"),
        ({"ids": {"prompt": [2**40], "sampled": []}}, r"Expected `int` <= 2147483647 - at `\$\.ids\.prompt\[0\]`"),
    ],
)
def test_a_line_that_is_no_call_says_what_was_expected_where(changes: dict[str, Any], error: str) -> None:
    """A misspelt key too, which would be a call without tools."""
    with pytest.raises(RecordError, match=error):
        line_of({**SHORTEST, **changes})


def test_lines_of_a_calls_file_lie_beside_files_of_spans(tmp_path: Path) -> None:
    """Bad ones are told by their numbers and cost no other."""
    good = json.dumps(SHORTEST)
    (tmp_path / "a.calls.jsonl").write_text(f'{good}\n\n{{"model": 1}}\n{good[:-3]}\n{good}\n')
    (tmp_path / "b.json").write_bytes(json_lines([spans(0)]))
    found, damage = read(tmp_path)
    assert [one.place for one in found] == [("a.calls.jsonl", 1), ("a.calls.jsonl", 5), ("b.json", 1)]
    assert [one.place.item for one in damage] == [3, 4]
    assert damage[0].num_bytes == 12
    assert "expected a call in OpenAI's chat form" in damage[0].why
    first, second = (next(iter(spans_of(one.request)))[2].trace_id for one in found[:2])
    assert first != second
