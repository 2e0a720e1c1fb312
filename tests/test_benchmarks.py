"""Benchmarks are run by hand and seldom; what they call changes."""

from __future__ import annotations

import runpy
import subprocess
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


def test_head_benchmark_still_runs() -> None:
    """On a small vocabulary, one bound; its own figures say that a step was taken."""
    arguments = ("--vocabulary", "512", "--tokens", "16", "--bounds", "1024")
    command = [sys.executable, str(BENCHMARKS / "head.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    bound, gibibytes, _, loss, grad_norm = done.stdout.splitlines()[1].split()
    assert bound == "1024" and float(gibibytes) > 0 and float(loss) != 0 and float(grad_norm) > 0
