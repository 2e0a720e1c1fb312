"""What a run hides from its agents in a sandbox, and what it says of agents without one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from tracegrad.compose.run.before_start import check_agent
from tracegrad.compose.run.load import load
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.streams.config import SelectConfig

SETTINGS = """
[agent]
callable = "agent.py:solve"
sandbox = "{sandbox}"
sandbox_paths = ["data", "~/nodes"]
[tasks]
file = "tasks.jsonl"
eval_file = "eval.jsonl"
[reward]
grader = "grade.py:grade"
[policy]
model = "policy"
[kafka.client]
"sasl.password" = "secret"
"""


def settings_of(folder: Path, sandbox: str) -> RunSettings:
    """Of a project whose files are there."""
    for name in ("tasks.jsonl", "eval.jsonl", "pyproject.toml"):
        (folder / name).touch()
    (folder / "agent.py").write_text("def solve(task): ...\n")
    (folder / "grade.py").write_text("def grade(task, output, attempt): ...\n")
    (folder / "policy").mkdir(exist_ok=True)
    (folder / "policy" / "config.json").write_text("{}")
    (folder / "mine.toml").write_text(SETTINGS.format(sandbox=sandbox))
    return load(folder / "mine.toml", environ={}, flags={"run": "mine"})


def test_tasks_runs_and_settings_are_hidden(tmp_path: Path) -> None:
    """All runs that lie there, also another's; the grader and other files of the project are not."""
    settings = settings_of(tmp_path, "bubblewrap")
    prepare_run(settings, tmp_path / "runs" / "other")
    wiring = Wiring(prepare_run(settings, tmp_path / "runs" / "mine"))
    names = ("runs", "runs/mine", "runs/other", "tasks.jsonl", "eval.jsonl", "mine.toml")
    assert wiring.runner().hidden == tuple(str(tmp_path / name) for name in names)


def test_the_history_of_the_tasks_is_hidden(tmp_path: Path) -> None:
    """`git show HEAD:tasks.jsonl` would tell what is expected, from the agent's folder or one above it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / ".git").mkdir()
    (folder / ".git").write_text("gitdir: ../elsewhere\n")
    wiring = Wiring(prepare_run(settings_of(folder, "bubblewrap"), folder / "runs" / "mine"))
    assert {str(tmp_path / ".git"), str(folder / ".git")} <= set(wiring.runner().hidden)


def test_keys_of_selected_runs_are_hidden(tmp_path: Path) -> None:
    """Wherever they lie: who has one may write in that run's name."""
    settings = settings_of(tmp_path, "bubblewrap")
    other = prepare_run(settings, tmp_path / "elsewhere" / "other")
    copy = tmp_path / "key-of-other.json"
    shutil.copy(other.path / "key.json", copy)
    selecting = msgspec.structs.replace(settings, select=SelectConfig(runs=(str(other.path), str(copy))))
    wiring = Wiring(prepare_run(selecting, tmp_path / "runs" / "mine"))
    assert {str(other.path), str(copy)} <= set(wiring.runner().hidden)


def test_further_folders_are_relative_to_the_file(tmp_path: Path) -> None:
    """As every path is."""
    agent = settings_of(tmp_path, "bubblewrap").agent
    assert agent is not None
    assert agent.sandbox_paths == (str(tmp_path / "data"), os.path.expanduser("~/nodes"))


def test_a_run_says_once_what_agents_without_a_sandbox_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one it says nothing, and ends at once where there can be none."""
    said: list[str] = []
    without, within = (settings_of(tmp_path, sandbox).agent for sandbox in ("off", "bubblewrap"))
    assert without is not None and within is not None
    check_agent(without, said.append)
    assert len(said) == 1 and "key" in said[0] and '[agent] sandbox = "bubblewrap"' in said[0]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="expected the program bwrap"):
        check_agent(within, said.append)
    assert len(said) == 1
