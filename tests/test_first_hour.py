"""docs/first-hour.md: its files are read, and its agent answers, as a reader's would."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.house import ROOT
from tracegrad.compose.run.load import load

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "first-hour.md").read_text()


def blocks(kind: str) -> list[str]:
    """The page's, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_each_file_of_a_run_is_one_beside_a_checkout(tmp_path: Path) -> None:
    """Their paths lead to the demo's model, tasks and grader."""
    (tmp_path / "tracegrad").symlink_to(ROOT)
    for number, text in enumerate(blocks("toml")):
        folder = tmp_path / str(number)
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
        (folder / "tracegrad.toml").write_text(text)
        for name, source in zip(("agent.py", "grade.py"), blocks("python"), strict=True):
            (folder / name).write_text(source)
        settings = load(folder / "tracegrad.toml", environ={}, flags={}, for_training=False)
        assert settings.policy.model is not None and (Path(settings.policy.model) / "model.safetensors").is_file()
        assert settings.tasks is None or (settings.tasks.file is not None and Path(settings.tasks.file).is_file())


def test_the_agent_asks_its_tool_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool call that cannot be read is told to the model."""
    openai = pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    source, _ = blocks("python")
    agent: dict[str, Any] = {"__name__": "agent"}
    exec(compile(source, "agent.py", "exec"), agent)
    asked: list[list[dict[str, Any]]] = []
    said = iter([{"expr": "14*2"}, {"expression": 1}, None])

    def create(*, messages: list[dict[str, Any]], **_: object) -> object:
        asked.append(list(messages))
        if (arguments := next(said)) is None:
            message: dict[str, Any] = {"role": "assistant", "content": "28"}
        else:
            call = {"id": "c", "type": "function", "function": {"name": "calc", "arguments": json.dumps(arguments)}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        fields = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice]}
        return openai.types.chat.ChatCompletion.model_validate(fields)

    agent["client"] = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    assert agent["solve"]({"id": "1", "input": "what is 14 by 2?"}) == "28"
    assert [message["content"] for message in asked[-1] if message["role"] == "tool"] == ["28", "error: syntax"]
