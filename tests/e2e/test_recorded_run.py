"""A run that release 0.1 recorded is audited, replayed and resumed by the code as it is.

`recorded_run.tar.xz` holds its folder with the agent, tasks, grader and model that it names: two steps of two groups of
three rollouts, of which the second step trains no token. Only paths were changed in it, and logs left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ARCHIVE = Path(__file__).with_name("recorded_run.tar.xz")
RECORDED_AT = "/srv/recorded"
"""Where it lay: a run is resumed with the agent and the model that it began with, by their paths."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the archive holds, as if it had been recorded here."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    config = tmp_path / "runs" / "recorded" / "config.json"
    config.write_text(config.read_text().replace(RECORDED_AT, str(tmp_path)))
    return tmp_path


def told(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What a command says in JSON, a line each; it ends with 0."""
    done = subprocess.run(
        [sys.executable, "-m", "tracegrad.compose.cli", *arguments, "--json"],
        cwd=folder, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def steps(lines: list[dict[str, Any]]) -> list[int]:
    """The numbers of the steps that were told."""
    return [line["step"] for line in lines if line.get("kind") == "step"]


def test_a_run_of_the_first_release_is_audited_replayed_and_resumed(folder: Path) -> None:
    """Every id is accounted for; `same` makes its weights again, bit for bit; a third step follows its two."""
    (audit,) = told(folder, "audit", "runs/recorded")
    assert audit["calls"]["total"] == 24 and audit["missing"] == []
    same = told(folder, "replay", "--from", "run:recorded", "--into", "again", "--mode", "same", "--runs-dir", "runs")
    assert steps(same) == [1, 2]
    resumed = told(folder, "train", "tracegrad.toml", "--runs-dir", "runs", "--steps", "3")
    assert steps(resumed)[-1] == 3
    (audit,) = told(folder, "audit", "runs/recorded")
    assert audit["calls"]["total"] >= 36 and audit["missing"] == []
