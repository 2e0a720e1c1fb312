"""Benchmarks, started by tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def ran(name: str, *arguments: str, timeout_s: float = 120) -> list[str]:
    """The lines that a benchmark prints, in a process of its own."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments]
    env = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)}
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=True, env=env
    ).stdout.splitlines()
