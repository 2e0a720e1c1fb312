"""Before anything of a run starts, its agent and grader are loaded for a trial, and the grader is asked a question."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.producers.keys import KEY, RUN_HASH
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.producers.runner.preflight import check_functions
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.tasks import Task

AGENT = "def solve(task):\n    return 'x'\n"
GRADER = "def grade(task, output, attempt):\n    return float(output == task['expected'])\n"
TASK = Task(id="one", input="how many?", expected="7")


def checked(folder: Path, *, agent: str = AGENT, grader: str = GRADER, task: Task | None = TASK, **more: Any) -> str:
    """What is odd about them."""
    (folder / "agent.py").write_text(agent)
    (folder / "grade.py").write_text(grader)
    handles = RunnerHandles(
        run_hash=RUN_HASH,
        llm_url="http://127.0.0.1:1",
        otlp_endpoint="http://127.0.0.1:1",
        key=KEY,
        log_dir=str(folder),
    )
    called = more or {"callable": f"{folder}/agent.py:solve"}
    config = AgentConfig(cwd=str(folder), **called)
    return asyncio.run(check_functions(config, RewardConfig(grader=f"{folder}/grade.py:grade"), handles, task))


def test_what_can_be_loaded_and_pays_the_expected_answer_is_not_odd(tmp_path: Path) -> None:
    """Nor where no task says what is expected, or the agent is a program, which is started with each rollout."""
    assert checked(tmp_path) == ""
    assert checked(tmp_path, grader=GRADER.replace("7", "8"), task=None) == ""
    assert checked(tmp_path, command="cat") == ""


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"agent": f"import os\nimport no_such_module\n{AGENT}"}, "ModuleNotFoundError at agent.py:2: No module named"),
        ({"agent": f"{AGENT}exit(3)\n"}, "SystemExit at agent.py:3"),
        ({"agent": f"{AGENT}def f(:\n"}, "SyntaxError"),
        ({"grader": f"import os\nos.environ['NO_SUCH_KEY']\n{GRADER}"}, "KeyError at grade.py:2: 'NO_SUCH_KEY'"),
    ],
)
def test_what_cannot_be_loaded_is_named_by_its_line(tmp_path: Path, files: dict[str, str], told: str) -> None:
    """And by the key of the settings."""
    with pytest.raises(ConfigurationError, match=r"\[agent\] callable|\[reward\] grader") as error:
        checked(tmp_path, agent=files.get("agent", AGENT), grader=files.get("grader", GRADER))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("return float(output == int(task['expected']))", "pays 0 for the expected answer of task one, and 0 for an"),
        ("return 1.0", "pays 1 for the expected answer of task one, and 1 for an empty one"),
        (
            "raise ValueError('no such form')",
            "no reward for the expected answer of task one, asked without",
        ),
        ("return 'right'", "no reward for the expected answer of task one"),
    ],
)
def test_a_grader_by_which_nothing_can_be_learnt_is_odd(tmp_path: Path, line: str, told: str) -> None:
    """Only said: one that reads the attempt's calls, of which this one has none, may be well."""
    assert told in checked(tmp_path, grader=f"def grade(task, output, attempt):\n    {line}\n")
