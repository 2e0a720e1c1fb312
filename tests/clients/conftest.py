"""The clients' environments, and a real engine with the policy that has learnt their conversation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.clients.policy import make_policy
from tests.clients.started import Programs
from tests.engine_fixture import SMALL, RunningEngine, started
from tests.versions import label

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """How a program of each kind is started."""
    folder = tmp_path_factory.mktemp("clients")
    python, uv = folder / "venv" / "bin" / "python", (sys.executable, "-m", "uv")
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder / "venv")], check=True)
    lines = str(HERE / "requirements.txt")
    subprocess.run([*uv, "pip", "install", "-q", "--no-deps", "--python", str(python), "-r", lines], check=True)
    shutil.copytree(HERE / "agents", folder / "agents")
    shutil.copy(HERE / "package.json", folder)
    npm = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefer-offline")
    subprocess.run(npm, cwd=folder, check=True)
    return {".py": (str(python), str(folder / "agents")), ".mjs": ("node", str(folder / "agents"))}


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """It serves version 0."""
    folder = tmp_path_factory.mktemp("policy")
    model = make_policy(folder / "model")
    engine = RunningEngine(folder, model, msgspec.structs.replace(SMALL, max_model_len=1024))
    with started(engine):
        engine.client.post("/update_weight_version", json={"new_version": label(0)}).raise_for_status()
        yield engine
