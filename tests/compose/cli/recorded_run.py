"""A run named `mine` that can be replayed as far as to its broker, which is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.compose.run.example_settings import SETTINGS
from tracegrad.compose.history import replay as history
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run `mine`, and a replay that folds nothing and ends."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "tasks.jsonl").write_text("")
    (tmp_path / "grade.py").write_text("def score(): ...")
    assert SETTINGS.tasks is not None and SETTINGS.reward is not None
    settings = msgspec.structs.replace(
        SETTINGS,
        policy=msgspec.structs.replace(SETTINGS.policy, model=str(tmp_path / "model")),
        tasks=msgspec.structs.replace(SETTINGS.tasks, file=str(tmp_path / "tasks.jsonl")),
        reward=msgspec.structs.replace(SETTINGS.reward, grader=f"{tmp_path / 'grade.py'}:score"),
    )
    prepare_run(settings, tmp_path / "mine")
    monkeypatch.setattr(history, "open_broker", _no_broker)
    return tmp_path


def _no_broker(source: RunDir, **_: object) -> Any:
    raise RuntimeError(f"opened {source.record.name}")
