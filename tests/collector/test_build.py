"""A Collector is built once, and a machine that cannot build one says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collector import build
from tests.collector.build import NoCollector, find_or_build

GO = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
  run) {run};;
  env) echo https://proxy.example;;
  build) {build};;
esac
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's go, and an empty cache."""
    monkeypatch.setattr(build, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("TRACEGRAD_COLLECTOR", raising=False)
    return tmp_path / "cache"


def put_go(folder: Path, run: str = "true", build: str = 'echo made > "$3/otelcol"') -> Path:
    """A `go` that does this; the file in which it writes how it was called."""
    (file := folder / "bin" / "go").parent.mkdir(parents=True)
    file.write_text(GO.format(log=folder / "log", run=run, build=build))
    file.chmod(0o755)
    return folder / "log"


def test_what_is_built_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the manifest: another one makes another binary."""
    log = put_go(tmp_path)
    first = find_or_build(60)
    assert first.read_text() == "made\n"
    asked = log.read_text()
    assert [line.split()[0] for line in asked.splitlines()] == ["run", "build"]
    assert find_or_build(60) == first
    assert log.read_text() == asked
    (other := tmp_path / "manifest.yaml").write_text(build.MANIFEST.read_text() + "\n")
    monkeypatch.setattr(build, "MANIFEST", other)
    assert find_or_build(60) != first
    monkeypatch.setenv("TRACEGRAD_COLLECTOR", "/opt/otelcol")
    assert find_or_build(60) == Path("/opt/otelcol")


def test_where_none_can_be_built_the_reason_is_told(tmp_path: Path, cache: Path) -> None:
    """No go, no proxy, a manifest that is wrong, a machine that is too slow; the cache holds no binary then."""
    with pytest.raises(NoCollector, match="expected go on PATH, got none"):
        find_or_build(60)
    for number, (does, within_s, why) in enumerate(
        [
            ({"run": "echo dial tcp: no such host; exit 1"}, 60, r"no such host; .*GOPROXY=https://proxy\.example"),
            ({"build": "echo no such package; exit 1"}, 60, "no such package"),
            ({"build": "/bin/sleep 100"}, 1, "within 1 s"),
        ]
    ):
        put_go(tmp_path / f"{number}", **does)
        (tmp_path / "bin").unlink(missing_ok=True)
        (tmp_path / "bin").symlink_to(tmp_path / f"{number}" / "bin")
        with pytest.raises(NoCollector, match=why):
            find_or_build(within_s)
    assert [*cache.rglob("otelcol")] == []
