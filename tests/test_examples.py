"""What the GSM8K example brings besides its settings: a tool parser and tools whose numbers keep their digits."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

GSM8K = Path(__file__).parents[1] / "examples" / "gsm8k"
CALL = '{"name": "calculator", "arguments": {"expression": "6*7"}}'


def load(name: str) -> Any:
    """A file of the example as a module."""
    spec = importlib.util.spec_from_file_location(f"gsm8k_{name}", GSM8K / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITTEN = {
    f"<tool_call>\n{CALL}\n</tool_call>": ["calculator"],
    f"```json\n{CALL}\n```": ["calculator"],
    f"So:\n{CALL}\n{CALL}": ["calculator", "calculator"],
    '```json\n{"answer": 42}\n```': [],
    CALL[:-3]: [],
}
"""What a model may write -> the tools that it calls."""
READ = """
import json, sys, types
sys.path.insert(0, sys.argv[1])
from tool_parser import JsonBlockToolParser
parser = JsonBlockToolParser(types.SimpleNamespace(get_vocab=dict))
found = {text: parser.extract_tool_calls(text, None) for text in json.load(sys.stdin)}
print(json.dumps({text: [call.function.name for call in calls.tool_calls] for text, calls in found.items()}))
"""


@pytest.mark.engine
def test_calls_are_read_as_models_write_them() -> None:
    """By the template's tags, as vLLM's own parser does, and as plain JSON; in the process of an engine."""
    command = [sys.executable, "-c", READ, str(GSM8K)]
    told = subprocess.run(
        command, input=json.dumps(list(WRITTEN)), capture_output=True, text=True, timeout=110, check=True
    )
    assert json.loads(told.stdout.splitlines()[-1]) == WRITTEN


@pytest.mark.slow
def test_tools_keep_the_digits_of_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grader compares the last number of the text."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangGraph announces where its agents will move to.
        agent = load("agent")
    assert agent.calculator.invoke({"expression": "1234567 * 10 + 0.5"}) == "12345670.5"
    for number in ("1234567", "--7"):
        with pytest.raises(ValueError, match="nothing to calculate"):
            agent.calculator.invoke({"expression": number})
    assert agent.answer.invoke({"number": 1234567}) == "1234567"
    assert load("grade").grade({"expected": "1234567"}, agent.answer.invoke({"number": 1234567}), {}) == 1.0
