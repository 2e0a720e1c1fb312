"""Builds the Collector of tests/e2e: `make collector`, or `python3 -m tests.collector.build`.

In: manifest.yaml, go on PATH, the Go proxy. Out: .cache/collector/VERSION-DIGEST/otelcol, whose path is printed; where
it lies already, nothing is done. Standard library alone. Failure: NoCollector: no go, a proxy that is
not reached or lacks a module, or another build that fails, with the end of what it said.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MANIFEST = Path(__file__).with_name("manifest.yaml")
CACHE = Path(__file__).parents[2] / ".cache" / "collector"
NO_COLLECTOR = "no Collector"
"""Begins the reason of a test that is skipped for it, which CI forgives: no package index has a Collector."""
_BUILDER = "go.opentelemetry.io/collector/cmd/builder"


class NoCollector(Exception):
    """It cannot be built here."""


def find() -> Path:
    """The binary that was built of this manifest; TRACEGRAD_COLLECTOR names another. Raises NoCollector."""
    binary = Path(os.environ.get("TRACEGRAD_COLLECTOR") or _place(MANIFEST.read_text())[1])
    if not binary.exists():
        raise NoCollector(f"expected {binary}, which `make collector` builds where go is; got none")
    return binary


def _place(manifest: str) -> tuple[str, Path]:
    """Version and binary."""
    found = re.search(r"(?m)^  version: (\S+)$", manifest)
    assert found is not None
    return found[1], CACHE / f"{found[1]}-{hashlib.sha256(manifest.encode()).hexdigest()[:8]}" / "otelcol"


def find_or_build(within_s: float) -> Path:
    """As `find`; blocks while it is built. Raises NoCollector."""
    if given := os.environ.get("TRACEGRAD_COLLECTOR"):
        return Path(given)
    manifest = MANIFEST.read_text()
    version, binary = _place(manifest)
    if binary.exists():
        return binary
    go, builder = shutil.which("go"), f"{_BUILDER}@v{version}"
    if go is None:
        raise NoCollector("expected go on PATH, got none; install Go, or name a Collector by TRACEGRAD_COLLECTOR")
    binary.parent.mkdir(parents=True, exist_ok=True)
    print(f"building {binary}: minutes, most of a gigabyte of modules at first", file=sys.stderr, flush=True)
    commands = (
        [go, "run", builder, "--config", "manifest.yaml", "--skip-get-modules", "--skip-compilation"],
        [go, "build", "-C", "made", "-trimpath", "-ldflags=-s -w", "-o", "otelcol", "."],
    )
    end = time.monotonic() + within_s
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder) / "made"
        made.mkdir()
        (Path(folder) / "manifest.yaml").write_text(manifest.replace("dist:\n", "dist:\n  output_path: made\n"))
        # The builder's own go.mod comes with `go mod tidy`, which also asks the proxy for what the tests of components
        # need; not every proxy has that.
        modules = [*re.findall(r"gomod: (.+)", manifest), f"go.opentelemetry.io/collector/otelcol v{version}"]
        (made / "go.mod").write_text("module otelcol\ngo 1.25\n" + "".join(f"require {one}\n" for one in modules))
        for command in commands:
            status, said = _run(command, folder, end - time.monotonic())
            if status is None:
                raise NoCollector(f"expected {binary} within {within_s:g} s; `make collector` waits longer")
            if status:
                _, proxy = _run([go, "env", "GOPROXY"], folder, 60)
                said = " ".join(said.split())[-600:]
                raise NoCollector(f"{' '.join(command)}: got {said}; modules are from GOPROXY={proxy.strip()}")
        # Whoever looks meanwhile sees none, or all of it.
        os.replace(made / "otelcol", binary)
    return binary


def _run(command: list[str], folder: str, within_s: float) -> tuple[int | None, str]:
    """Its status, None where it did not end in time, and what it said. Its children end with it."""
    # The folder lies in a repository of which the modules are no part; no C compiler is needed.
    flags = f"{os.environ.get('GOFLAGS', '')} -buildvcs=false -mod=mod".strip()
    environ = os.environ | {"GOFLAGS": flags, "CGO_ENABLED": "0", "GOWORK": "off"}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=within_s)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """The command."""
    try:
        print(find_or_build(within_s=3600))
    except NoCollector as error:
        sys.exit(f"tracegrad: {NO_COLLECTOR}: {error}")


if __name__ == "__main__":
    main()
