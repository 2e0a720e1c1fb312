"""Tiny random models, made once a session, and a log to train from."""

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
def log(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """With all topics of the run and twelve groups, some repeated, unreadable or useless; the loop does not pause."""
    from tests.trainer.looping import TOPICS, fill
    from tracegrad.trainer import loop

    monkeypatch.setattr(loop, "_POLL_S", 0.005)
    memory_log.create_topics(TOPICS, policies=["policy"])
    fill(memory_log)
    return memory_log
