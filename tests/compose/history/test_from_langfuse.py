"""examples/history/from_langfuse.py: rows of a blob storage export become calls and rewards."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.compose.history.export_examples import ASKED, FUNCTION, PROMPT, SAID, TOOL, calls, run
from tracegrad.schemas.records.told import ChatMessage


def generation(number: int, given: object, said: object, **changes: object) -> dict[str, Any]:
    """A row of `observations_v2/`.

    Field names and types: langfuse-docs, content/docs/api-and-data-platform/features/blob-storage-export-fields.mdx
    ("Enriched observations"); input and output as langfuse-python's `langfuse/openai.py` writes them.
    """
    told = [text if isinstance(text, str) else json.dumps(text) for text in (given, said)]
    row = {
        "id": f"obs-{number}",
        "trace_id": "support-chat-7-950dc53a",
        "project_id": "7a88fb47-b4e2-43b8-a06c-a5ce950dc53a",
        "environment": "default",
        "type": "GENERATION",
        "parent_observation_id": "",
        "start_time": f"2025-12-17 16:09:0{number}.875000",
        "end_time": f"2025-12-17 16:09:0{number}.999000",
        "name": "OpenAI-generation",
        "metadata": {},
        "level": "DEFAULT",
        "status_message": "",
        "version": "",
        "input": told[0],
        "output": told[1],
        "provided_model_name": "gpt-4o",
        "model_parameters": '{"temperature": 0.2}',
        "usage_details": {"input": 98, "output": 68, "total": 166},
        "cost_details": {"input": 0.00049, "output": 0.00204},
        "completion_start_time": None,
        "prompt_name": "",
        "prompt_version": None,
        "total_cost": 0.00253,
        "latency": 0.581,
        "time_to_first_token": None,
        "model_id": "clm1a2b3c4d5e6f7g8h9i0j1",
        "tool_calls": [],
        "tool_call_names": [],
        "tool_definitions": {},
        "user_id": "",
        "session_id": "support-chat-session",
        "trace_name": "support-chat",
        "tags": ["support", "chat"],
        "release": "v1.4.2",
        "bookmarked": False,
        "public": False,
    }
    return row | changes


def score(number: int, **changes: object) -> dict[str, Any]:
    """A row of `scores/`, likewise."""
    row = {
        "id": f"score-{number}",
        "timestamp": f"2025-12-18 10:00:0{number}.000000",
        "project_id": "7a88fb47-b4e2-43b8-a06c-a5ce950dc53a",
        "environment": "default",
        "trace_id": "support-chat-7-950dc53a",
        "observation_id": None,
        "session_id": None,
        "dataset_run_id": None,
        "name": "helpfulness",
        "value": 0.75,
        "source": "ANNOTATION",
        "comment": None,
        "data_type": "NUMERIC",
        "string_value": None,
    }
    return row | changes


def exported(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of the export, as JSONL."""
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


CALLED = {"id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": '{"location": "Oslo"}'}}
USER = {"role": "user", "content": "Weather in Oslo?"}
ANSWERED = {"role": "assistant", "tool_calls": [CALLED], "content": None}


def test_langfuse_generations_become_calls(tmp_path: Path) -> None:
    """A request with tools and its answer, and what came behind: messages and a text."""
    rest = [USER, {**ANSWERED, "audio": None}, {"role": "tool", "tool_call_id": "call_0", "content": "sunny"}]
    rows = [generation(2, rest, "Sunny."), generation(1, {"tools": [FUNCTION], "messages": [USER]}, ANSWERED)]
    again = [generation(2, rest, "Sunny."), generation(3, [USER], '{"sun": tr')]
    files = [exported(tmp_path / name, part) for name, part in (("1.jsonl.gz", rows), ("2.jsonl", again))]
    lines, said = run("from_langfuse.py", *files)
    assert said == "3 written, 1 twice, on the boundary of two exports"
    first, second, third = calls(lines)
    assert (first.call.messages, first.call.tools, first.call.answer) == ((PROMPT,), (TOOL,), ASKED)
    assert (first.call.lacks, second.call.lacks) == ((), ("no_tools_told",))
    result = ChatMessage(role="tool", tool_call_id="call_0", content="sunny")
    assert second.call.messages == (PROMPT, ASKED, result)
    assert (second.call.tools, second.call.answer) == (None, SAID)
    assert third.call.answer == ChatMessage(role="assistant", content='{"sun": tr')
    assert (first.call.model, first.call.response_id, first.call.started_ns) == (
        "gpt-4o",
        "obs-1",
        1_765_987_741_875_000_000,
    )
    assert {(one.conversation, one.agent) for one in (first, second)} == {("support-chat-7-950dc53a", "support-chat")}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (generation(1, [USER], "x", type="SPAN"), "no generation"),
        (generation(1, [USER], "", level="ERROR"), "failed or unfinished"),
        (generation(1, [USER], "x", end_time=None), "failed or unfinished"),
        (generation(1, "Weather in Oslo?", "x"), "in another form"),
        (generation(1, {"system": "Be short.", "messages": [USER]}, "x"), "in another form"),
        (generation(1, [{"role": "user", "parts": [{"type": "text"}]}], "x"), "in another form"),
        (generation(1, [USER], {"temperature": 3}), "in another form"),
        (generation(1, [USER], {"role": "assistant", "function_call": {"name": "f"}}), "in another form"),
        (score(1, data_type="CATEGORICAL", string_value="good"), "in words, or of a session"),
        (score(1, trace_id=None, session_id="s"), "in words, or of a session"),
    ],
)
def test_what_langfuse_does_not_tell_is_counted(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    """By its reason, and no line is made of it."""
    assert run("from_langfuse.py", exported(tmp_path / "1.jsonl", [row])) == ([], f"1 {reason}")


def test_langfuse_scores_become_rewards(tmp_path: Path) -> None:
    """Of a call by its id, of a trace by the conversation that its calls name."""
    rows = [score(1), score(2, observation_id="obs-1", name="thumb", data_type="BOOLEAN", value=1)]
    assert run("from_langfuse.py", exported(tmp_path / "1.jsonl", rows))[0] == [
        {"conversation": "support-chat-7-950dc53a", "name": "helpfulness", "value": 0.75},
        {"response_id": "obs-1", "name": "thumb", "value": 1},
    ]
