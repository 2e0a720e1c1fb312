"""Tiny random models, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_models import make_model


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 whose lm_head is its own."""
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 whose lm_head is the embedding."""
    return make_model(tmp_path_factory.mktemp("models") / "qwen2", "qwen2")
