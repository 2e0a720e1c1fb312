"""What several tests of admission start from."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.memory_log import MemoryLog
from tests.producers.tasks.world import World


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, to be advanced."""
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path) -> World:
    """A run of three steps of two groups of two, with two held-out tasks."""
    return World(memory_log, tmp_path)
