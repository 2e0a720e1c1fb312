"""What people install: the wheel and the sdist hold all of it, and the demo is found where they put it."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCES = ("schemas", "producers", "streams", "trainer", "consumers", "compose", "examples")
BESIDE = ("tests", "benchmarks", "docs", "requirements", ".ci")
FIND_THE_DEMO = "from tracegrad.compose.cli.run import CALCULATOR; print(CALCULATOR)"


def files_under(*folders: str) -> set[str]:
    """Paths from the root, without what running leaves behind."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.is_file() and not path.name.endswith(".pyc") and ".egg-info" not in path.as_posix()
    }


def test_the_wheel_holds_every_source(wheel: Path) -> None:
    """Code, the jars' lock, py.typed, and the examples with their tasks and the calculator's policy."""
    roots = {name.replace("schemas/_root/", "") for name in files_under(*SOURCES)}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {f"tracegrad/{name}" for name in roots}


def test_the_sdist_holds_the_checkout(sdist: Path) -> None:
    """From it one can build, test and read everything."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    top = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml"}
    assert files_under(*SOURCES, *BESIDE) | top <= held


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and this one's libraries behind it, but not this checkout."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    place = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    # An environment that uv made has no pip, and any of ours has uv.
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--python",
        str(python),
    ]
    subprocess.run([*command, str(wheel)], check=True, timeout=60)
    # Paths, not site folders: a .pth of theirs would bring the editable checkout back.
    libraries = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    (place / "libraries.pth").write_text("\n".join(libraries))
    return python


def test_the_installed_wheel_finds_its_demo(installed: Path, tmp_path: Path) -> None:
    """`tracegrad demo` needs no checkout: its example lies in the package."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    example = Path(run(installed, "-c", FIND_THE_DEMO).strip())
    assert installed.parents[1] in example.parents
    assert (example.parent / "policy" / "model.safetensors").is_file()
    script = installed.with_name("tracegrad")
    assert installed.parents[1].name in script.read_text().splitlines()[0] or installed.is_symlink()
    assert "--steps" in run(installed, script, "demo", "--help")
    assert run(installed, "-c", "import tracegrad; print(tracegrad.__file__)").startswith(str(installed.parents[1]))
