"""The clients' environments."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.started import Programs

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
