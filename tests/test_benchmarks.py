"""Benchmarks are run by hand and seldom; what they call changes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_transitions_benchmark_still_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a small group; a line a step."""
    monkeypatch.setattr(sys, "argv", ["transitions.py", "--rollouts", "2", "--turns", "2", "--tokens", "64"])
    runpy.run_path(str(BENCHMARKS / "transitions.py"), run_name="__main__")
    steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert steps == ["credit", "encode", "judge", "rows", "batches"]
