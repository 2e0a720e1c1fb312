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
def log() -> MemoryLog:
    """Of a run whose trainer has not begun."""
    from tests.trainer.run_loop import new_log

    return new_log()
