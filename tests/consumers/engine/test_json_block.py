"""Tool calls as models write them, read in the process of an engine: by the template's tags, and as plain JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT, TOOL_PARSER

pytestmark = pytest.mark.engine

RECORDED = [json.loads(line) for line in Path(__file__).with_name("json_block.jsonl").read_text().splitlines()]
"""Answers of Qwen2.5-Coder-0.5B-Instruct that offered it a calculator; a quarter of them call nothing."""
CALL = '{"name": "calculator", "arguments": {"expression": "6*7"}}'
CALLED = ["calculator", {"expression": "6*7"}]
MADE = {
    f"<tool_call>\n{CALL}\n</tool_call>": [CALLED],
    f"```json\n{CALL}\n```": [CALLED],
    f"So:\n{CALL}\n{CALL}": [CALLED, CALLED],
    '```json\n{"answer": 42}\n```': [],
    CALL[:-3]: [],
}
"""What a model may write -> its calls."""
READ = """
import json, sys, types
sys.path.insert(0, sys.argv[1])
from json_block import JsonBlockToolParser
parser = JsonBlockToolParser(types.SimpleNamespace(get_vocab=dict))
found = [parser.extract_tool_calls(text, None).tool_calls for text in json.load(sys.stdin)]
print(json.dumps([[(call.function.name, json.loads(call.function.arguments)) for call in calls] for calls in found]))
"""


def test_calls_are_read_as_models_write_them() -> None:
    """Thirty recorded answers, and the forms that none of them has; what is no call stays text."""
    expected = [(one["text"], one["calls"]) for one in RECORDED] + list(MADE.items())
    assert len(RECORDED) == 30
    told = subprocess.run(
        [sys.executable, "-c", READ, str((ROOT / TOOL_PARSER).parent)],
        input=json.dumps([text for text, _ in expected]),
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    read = json.loads(told.stdout.splitlines()[-1])
    assert list(zip((text for text, _ in expected), read, strict=True)) == expected
