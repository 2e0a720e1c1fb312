"""One vLLM of a tied and one of an untied tiny model, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine_fixture import RunningEngine, started
from tests.tiny_models import Kind, make_model

Engines = dict[Kind, RunningEngine]


@pytest.fixture(scope="package")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """By the model's kind, started together."""
    made: Engines = {}
    for kind in ("qwen2", "qwen3"):
        folder = tmp_path_factory.mktemp(kind)
        made[kind] = RunningEngine(folder, make_model(folder / "model", kind))
    with started(*made.values()):
        yield made


@pytest.fixture
def engine(engines: Engines) -> RunningEngine:
    """Of the untied model. Tests share it: leave it running and not paused, whatever its weights."""
    return engines["qwen3"]


@pytest.fixture
def tied(engines: Engines) -> RunningEngine:
    """Of the model whose head is its embedding."""
    return engines["qwen2"]
