"""Settings files, and the files that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

GOOD = """
run = "mine"
[agent]
callable = "agent.py:solve"
[tasks]
file = "tasks.jsonl"
[reward]
grader = "grade.py:grade"
[policy]
model = "policy"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which GOOD is valid."""
    (tmp_path / "agent.py").write_text("def solve(task): ...\n")
    (tmp_path / "grade.py").write_text("async def grade(task, output, attempt): ...\n")
    (tmp_path / "tasks.jsonl").touch()
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    """The TOML file with this text."""
    path = folder / "tracegrad.toml"
    path.write_text(text)
    return path
