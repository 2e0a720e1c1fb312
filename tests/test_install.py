"""What is said before the first download, and that the Makefile finds its way: from any path, and without Python."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
GIB = 1 << 30
CPYTHON = b"CPython 3 11"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, on a machine that has all it wants; `has` changes that."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "requirements" / "install.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    machine = {"system": "Linux", "machine": "x86_64", "python": CPYTHON, "venv": 0, "free": 50 * GIB, "uv": None}

    def run(command: list[str], **_: Any) -> Any:
        if "venv" in command[-1]:
            return SimpleNamespace(returncode=machine["venv"])
        return SimpleNamespace(returncode=0, stdout=machine["python"])

    monkeypatch.setattr(module.platform, "system", lambda: machine["system"])
    monkeypatch.setattr(module.platform, "machine", lambda: machine["machine"])
    monkeypatch.setattr(module.shutil, "which", lambda name: machine["uv"] if name == "uv" else f"/bin/{name}")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=machine["free"]))
    monkeypatch.setattr(module.subprocess, "run", run)
    module.has = machine.update
    return module


def refused(install: Any, capsys: pytest.CaptureFixture[str], venv: Path) -> str:
    """The one line with which it ends."""
    with pytest.raises(SystemExit) as left:
        install.check_machine("demo", str(venv))
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("tracegrad: expected ")
    return said


def test_a_machine_that_has_all_is_taken(install: Any, tmp_path: Path) -> None:
    """With uv when there is one."""
    assert install.check_machine("demo", str(tmp_path / "venv")) == ("/bin/python3.11", None)
    install.has({"uv": "/bin/uv", "venv": 1})
    assert install.check_machine("demo", str(tmp_path / "venv")) == ("/bin/python3.11", "/bin/uv")


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({"system": "Darwin", "machine": "arm64"}, "expected Linux x86_64, got Darwin arm64"),
        ({"machine": "aarch64"}, "expected Linux x86_64, got Linux aarch64"),
        ({"python": b"CPython 3 12"}, "install Python 3.11"),
        ({"python": b"PyPy 3 11"}, "expected CPython 3.11 on PATH"),
        ({"python": b""}, "expected CPython 3.11 on PATH"),
        ({"venv": 1}, "install the package python3.11-venv, or uv"),
        ({"free": 2 * GIB}, "expected 9 GiB free disk under"),
    ],
    ids=["platform", "processor", "newer", "pypy", "broken", "venv", "disk"],
)
def test_what_is_missing_is_said_in_one_line(
    lacks: dict[str, Any], words: str, install: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first download."""
    install.has(lacks)
    assert words in refused(install, capsys, tmp_path / "venv")


def test_a_half_made_environment_needs_the_disk_too(
    install: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted run leaves the folder, not a stamp; a whole one needs little more."""
    install.has({"free": 2 * GIB})
    venv = tmp_path / "venv"
    venv.mkdir()
    assert "got 2.0 GiB" in refused(install, capsys, venv)
    (venv / ".tracegrad-demo").write_text("of older lists")
    assert install.check_machine("test", str(venv))


def test_a_folder_that_cannot_be_written_is_said(
    install: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the remedy."""
    monkeypatch.setattr(install.os, "access", lambda path, mode: False)
    assert "VENV=DIR" in refused(install, capsys, tmp_path / "venv")


def test_a_stamp_serves_the_profiles_that_it_contains(install: Any, tmp_path: Path) -> None:
    """And only as long as the lists are the same."""
    assert not install.is_ready("demo", str(tmp_path))
    (tmp_path / ".tracegrad-test").write_text(install.wanted_stamp("test"))
    assert install.is_ready("demo", str(tmp_path)) and install.is_ready("core", str(tmp_path))
    (tmp_path / ".tracegrad-test").write_text("of older lists")
    assert not install.is_ready("demo", str(tmp_path))


LEFT_OUT = {"triton", "cuda-toolkit", "cuda-bindings", "torchaudio", "torchvision", "torchcodec"}
"""For GPUs, sound and pictures: torch and vLLM import them where they are used, which is nowhere here."""


def pinned(name: str) -> set[str]:
    """The distributions of one list."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["core", "demo", "test"])
def test_a_profile_pins_all_that_its_distributions_need(install: Any, profile: str) -> None:
    """They are installed with --no-deps: what no list of the profile names is not there."""
    have = set().union(*map(pinned, install.PROFILES[profile]))
    needs = [(name, Requirement(text)) for name in have for text in metadata.requires(name) or []]
    lacking = {
        f"{name} needs {need.name}"
        for name, need in needs
        if (need.marker is None or need.marker.evaluate({"extra": ""}))
        and canonicalize_name(need.name) not in have | LEFT_OUT
    }
    assert lacking == set()


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs make in a checkout whose path has a blank; what would be installed is printed."""
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    shutil.copy(ROOT / "Makefile", checkout)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("dirname", "realpath", "grep", "sed", "expand"):
        (tools / name).symlink_to(shutil.which(name) or name)

    def run(*arguments: str, path: Path = tools) -> subprocess.CompletedProcess[str]:
        program = shutil.which("make")
        assert program is not None
        command = [program, "--no-print-directory", *arguments]
        environ = {"PATH": str(path)}
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=30, check=False
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("way", [("-C", "a checkout"), ("-f", "a checkout/Makefile")], ids=["folder", "file"])
def test_make_works_from_a_path_with_a_blank(
    make: Callable[..., subprocess.CompletedProcess[str]], way: tuple[str, str], tmp_path: Path
) -> None:
    """Every path in it is quoted."""
    assert "train the small agent" in make(*way, "help").stdout
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    checkout = tmp_path / "a checkout"
    done = make(*way, "env", f"PYTHON3={python}")
    assert done.stdout == f"{checkout}/requirements/install.py|test|--venv|{checkout}/.venv|", done.stderr
    for target in ("demo", "test", "fast", "lint", "types", "clean"):
        printed = make(*way, "--dry-run", target).stdout
        assert str(checkout) in printed
        assert printed.count(str(checkout)) == printed.count(f'"{checkout}')


def test_make_without_python_says_so(make: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """In our words, not the shell's."""
    for target in ("env", "demo", "test", "fast"):
        done = make("-C", "a checkout", target)
        assert done.returncode == 2
        assert "tracegrad: expected python3 on PATH, got none; install Python 3.11" in done.stderr
