"""`check`: what would end a run is found before anything is started; `train` looks for the same at its start."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tracegrad.compose.cli import app
from tracegrad.schemas.errors import ConfigurationError

pytestmark = pytest.mark.engine
CALCULATOR = Path(__file__).parents[3] / "examples" / "calculator"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of the calculator in a folder of its own, where the tests write beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    shutil.copytree(CALCULATOR, tmp_path / "calculator", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "calculator" / "tracegrad.toml"


def broken(file: Path, name: str, text: str) -> Path:
    """The settings, with another agent or grader."""
    (file.parent / name).write_text(text)
    return file


def test_settings_that_can_train_pass_and_leave_nothing(file: Path) -> None:
    """No folder of a run, no key; with the number of tasks."""
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "1152 tasks; nothing was found that ends a run"
    assert list((file.parents[1] / "temporary").glob("*check*")) == [] and not (file.parent / "runs").exists()


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "agent.py",
            "import no_such_module\ndef solve(task): ...\n",
            r"\[agent\] callable .* agent\.py:1: No module",
        ),
        ("grade.py", "open('/no/key')\ndef grade(*_): ...\n", r"\[reward\] grader .* FileNotFoundError at grade\.py:1"),
    ],
)
def test_what_cannot_be_loaded_ends_it_before_a_broker_or_engine_starts(
    command: str, name: str, text: str, message: str, file: Path, tmp_path: Path
) -> None:
    """By the line of the user's; so an engine's minute is not waited for."""
    runs = [] if command == "check" else ["--runs-dir", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, [command, str(broken(file, name, text)), *runs])
    with pytest.raises(ConfigurationError, match=message):
        raise result.exception or AssertionError(result.output)
    assert [*(tmp_path / "runs").glob("*/kafka/*"), *(tmp_path / "runs").glob("*/logs/engine*")] == []


def test_a_run_on_captured_traffic_is_checked_as_up_would_start_it(file: Path) -> None:
    """It has no tasks to train on; its held-out ones, and the agent that answers them, are."""
    feedback = file.parents[1] / "feedback"
    shutil.copytree(CALCULATOR.parent / "feedback", feedback, ignore=shutil.ignore_patterns("__pycache__"))
    result = CliRunner().invoke(app, ["check", str(feedback), "--model", str(file.parent / "policy")])
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "128 tasks; nothing was found that ends a run")


def test_a_grader_that_pays_the_expected_answer_nothing_is_said(file: Path) -> None:
    """`check` passes: only a person knows."""
    text = "def grade(task, output, attempt):\n    return float(output == {'answer': task['expected']})\n"
    result = CliRunner().invoke(app, ["check", str(broken(file, "grade.py", text))])
    assert result.exit_code == 0
    assert "warning: the grader pays 0 for the expected answer of task" in result.output
