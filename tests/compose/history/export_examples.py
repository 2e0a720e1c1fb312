"""Runs the examples of examples/history, and reads their lines as an import does."""

from __future__ import annotations

import io
import json
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from tracegrad.compose.history.exports.call_lines import read_call_line
from tracegrad.schemas.attributes import GEN_AI_AGENT_NAME, GEN_AI_CONVERSATION_ID
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToolDefinition
from tracegrad.streams.normalize.told.read_call import told_call

EXAMPLES = Path(__file__).parents[3] / "examples" / "history"
WEATHER = {
    "name": "get_weather",
    "description": "Get current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
FUNCTION = {"type": "function", "function": WEATHER}
TOOL = ToolDefinition(**{**WEATHER, "parameters": json.dumps(WEATHER["parameters"])})  # type: ignore[arg-type]
OSLO = ToolCall(id="call_0", name="get_weather", arguments='{"location": "Oslo"}')
PROMPT = ChatMessage(role="user", content="Weather in Oslo?")
ASKED = ChatMessage(role="assistant", tool_calls=(OSLO,))
SAID = ChatMessage(role="assistant", content="Sunny.")


def run(name: str, *arguments: object) -> tuple[list[Any], str]:
    """The lines that an example wrote, and what it said at the end."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", [name, *map(str, arguments)]):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue().strip()


class ReadLine(NamedTuple):
    """What a replay reads of a line."""

    call: ToldCall
    conversation: str | None
    agent: str | None
    rewards: dict[str, float]


def calls(lines: list[Any]) -> list[ReadLine]:
    """Of these lines."""
    return [_read(json.dumps(line).encode(), place) for place, line in enumerate(lines)]


def _read(data: bytes, place: int) -> ReadLine:
    of_scope = read_call_line(data, f"x:{place}", at_ms=1).resource_spans[0].scope_spans[0]
    (span,) = of_scope.spans
    told = {one.key: one.value.string_value for one in span.attributes}
    events = [{one.key: one.value for one in event.attributes} for event in span.events]
    rewards = {
        event["gen_ai.evaluation.name"].string_value: event["gen_ai.evaluation.score.value"].double_value
        for event in events
    }
    conversation, agent = (told.get(key) for key in (GEN_AI_CONVERSATION_ID, GEN_AI_AGENT_NAME))
    return ReadLine(told_call(span, of_scope.scope.name), conversation, agent, rewards)
