"""Tiny random models, made once a session; a run's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory_log import MemoryLog
from tests.tiny_models import make_model


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 whose lm_head is its own."""
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 whose lm_head is the embedding."""
    return make_model(tmp_path_factory.mktemp("models") / "qwen2", "qwen2")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """Of a run whose trainer has not begun, and then waits only shortly: a test writes all at once."""
    from tests.trainer.run_loop import new_log
    from tracegrad.trainer import loop

    monkeypatch.setattr(loop, "_POLL_S", 0.005)
    return new_log()
