"""No odd value of a span, whatever its type and depth, stops what reads calls; and the roles of smolagents."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest

from tests.streams.normalize.rows_of_told_calls import GENAI, OI, OI_FLAT, OTEL, ROWS, made
from tracegrad.schemas.records.told import ToldCall
from tracegrad.streams.normalize.told.read_call import told_call

DEEP = '{"a":' * 900 + "1" + "}" * 900
SCOPES = (
    f"{OI}openai",
    f"{OI}openai_agents",
    f"{OI}smolagents",
    f"{OTEL}openai_agents",
    "gcp.vertex.agent",
    "pydantic-ai",
)
"""Some instrumentations are read in a way of their own."""
ODD: list[Any] = [
    1,
    True,
    1e308,
    "",
    "x",
    "[{",
    '{"',
    "null",
    "9" * 5000,
    "[" * 100_000,
    "[" * 900 + "]" * 900,
    DEEP,
    [],
    {},
    [None],
    [[[]]],
    [{"type": []}],
    [{"role": 1}],
    [{"content": {"a": 1}}],
    [{"parts": [1, {"type": "tool_call"}]}],
    [{"role": "user", "parts": 5}, {"parts": None}, {}],
    [{"parts": [{"type": "tool_call_response", "response": json.loads(DEEP)}]}],
    [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": DEEP}}] * 2}],
    [{"role": "assistant", "parts": [{"type": "tool_call", "id": "a", "name": "f", "arguments": json.loads(DEEP)}]}],
    [{"tool_calls": [1, {"function": 1}, {"id": {}}]}],
    {"message": {"message": {"message": {"message": {}}}}},
    [{"type": "tool_result", "content": [1, {"text": 2}]}],
    {"choices": [1]},
    {"choices": []},
    {"generations": [[]]},
    {"messages": {"a": 1}, "tools": 1, "model": []},
    [{}] * 10_001,
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_no_odd_value_raises_or_makes_a_record_that_cannot_be_read(odd: Any) -> None:
    """Of wrong types, nested deep, long, or cut: each attribute that is read, and each event."""
    keys = {key for _, attributes, _ in ROWS.values() for key in attributes}
    keys |= {
        "llm.input_messages.0",
        "gen_ai.prompt.0.content.0.x",
        "gen_ai.completion.9999999999.a",
        "ai.response.toolCalls",
    }
    events = [
        ("gen_ai.choice", {"message": odd, "index": 0}),
        ("gen_ai.user.message", {"content": odd, "tool_calls": odd}),
    ]
    spans = [made(dict.fromkeys(keys, odd)), made({}, events), *(made(GENAI | {key: odd}) for key in sorted(keys))]
    for one, scope in itertools.product(spans, SCOPES):
        call = told_call(one, scope)
        assert msgspec.json.decode(msgspec.json.encode(call), type=ToldCall) == call


def test_messages_of_a_role_in_a_row_are_one_as_smolagents_sends_them() -> None:
    """A line apart, in the roles that it sends; an empty text is not told."""
    said = [("user", "Go."), ("assistant", ""), ("tool-call", "Calling f"), ("tool-response", "3"), ("user", "And?")]
    place = "llm.input_messages.{}.message.{}".format
    told = {place(n, "role"): role for n, (role, _) in enumerate(said)}
    told |= {place(n, "contents.0.message_content.text"): text for n, (_, text) in enumerate(said) if text}
    answer = {key: value for key, value in OI_FLAT.items() if key.startswith("llm.output_messages.")}
    call = told_call(made(told | answer), f"{OI}smolagents")
    expected = [("user", "Go."), ("assistant", "\nCalling f"), ("user", "3\nAnd?")]
    assert [(message.role, message.content) for message in call.messages or ()] == expected
    assert call.lacks == ("no_tools_told",)
