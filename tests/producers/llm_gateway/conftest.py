"""The gateway of most tests, and two vLLMs of a taught model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine_fixture import SMALL, RunningEngine, started
from tests.producers.llm_gateway.harness import Rig, begun
from tests.producers.llm_gateway.taught_model import DATA, OWN_TOKENIZER, TEMPLATES, make_taught_model
from tests.versions import label


@pytest.fixture
async def r() -> AsyncIterator[Rig]:
    """A gateway at which the attempt has begun."""
    async with begun() as made:
        yield made


@pytest.fixture(scope="package")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningEngine]]:
    """One with each of the templates, started together; their labels are version 0's. Leave them as they are."""
    own: dict[str, Any] = {"tokenizer_file": Path(OWN_TOKENIZER), "steps": 0} if OWN_TOKENIZER else {}
    engines = {}
    for name in TEMPLATES:
        folder = tmp_path_factory.mktemp(name)
        model = make_taught_model(folder / "model", (DATA / f"{name}.jinja").read_text(), **own)
        engines[name] = RunningEngine(folder, model, msgspec.structs.replace(SMALL, max_model_len=1024))
    with started(*engines.values()):
        for engine in engines.values():
            engine.client.post("/update_weight_version", json={"new_version": label(0)}).raise_for_status()
        yield engines
