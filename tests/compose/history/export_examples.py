"""Runs the examples of examples/history, and reads their lines as an import does."""

from __future__ import annotations

import io
import json
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tracegrad.compose.history.call_lines import CallLine, read_call_line
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.told import ChatMessage, ToolDefinition

EXAMPLES = Path(__file__).parents[3] / "examples" / "history"
WEATHER = {
    "name": "get_weather",
    "description": "Get current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
FUNCTION = {"type": "function", "function": WEATHER}
TOOL = ToolDefinition(**WEATHER)  # type: ignore[arg-type]
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


def calls(lines: list[Any]) -> list[CallLine]:
    """Of these lines."""
    return [read_call_line(json.dumps(line).encode(), f"x:{place}", at_ms=1) for place, line in enumerate(lines)]
