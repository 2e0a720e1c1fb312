"""`tracegrad` itself: one owner of the version, typed, and every folder of code in the wheel's list."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import tracegrad

ROOT = Path(__file__).parents[2]
ROOMS = ("schemas", "producers", "streams", "trainer", "consumers", "compose")


def test_the_version_is_told_once() -> None:
    """The build reads it from the package; the changelog's newest entry is of it."""
    assert metadata.version("tracegrad") == tracegrad.__version__
    assert (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].startswith(tracegrad.__version__)


def test_type_checkers_may_trust_it() -> None:
    """PEP 561's mark stands beside the root module."""
    assert Path(tracegrad.__file__).with_name("py.typed").is_file()


def test_every_package_is_installed() -> None:
    """A folder that setuptools does not know would be missing from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    packages = {".".join(("tracegrad", *folder.parts)) for folder in folders - {Path("schemas/_root")}}
    assert {name for name in listed if not name.startswith("tracegrad.examples.")} == packages | {"tracegrad"}
