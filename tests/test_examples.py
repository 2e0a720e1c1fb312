"""What the examples bring besides settings: a tool parser, tools whose numbers keep their digits, taps that end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
GSM8K = EXAMPLES / "gsm8k"
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


CLIENT = """
import time
TopicPartition = None
class Consumer:
    def __init__(self, settings): pass
    def subscribe(self, topics): pass
    def poll(self, timeout): print("polls", flush=True); time.sleep(0.01)
    def close(self):
        print("closes", flush=True)
        while True:
            try: time.sleep(60)
            except KeyboardInterrupt: pass
"""
"""Stands in for `confluent_kafka`: its broker is away, so that no record comes and a close never returns, whatever
signal comes, as of a call into C."""


@pytest.mark.parametrize(
    ("script", "arguments", "shown"),
    [("episodes", (), ["polls"]), ("webhook", ("http://127.0.0.1:9",), ["polls", "closes"])],
)
def test_a_tap_ends_by_ctrl_c_though_its_broker_is_away(
    script: str, arguments: tuple[str, ...], shown: list[str], tmp_path: Path
) -> None:
    """At once where nothing is to be committed; else by a second one."""
    (tmp_path / "confluent_kafka.py").write_text(CLIENT)
    command = [sys.executable, str(EXAMPLES / "taps" / f"{script}.py"), "127.0.0.1:9", "topic", *arguments]
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for word in shown:
                assert any(line.strip() == word for line in process.stdout), word
                process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()
