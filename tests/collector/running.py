"""A Collector beside a test, by a configuration of the docs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml  # type: ignore[import-untyped]

from tests.serving import free_port, until

DOCS = Path(__file__).parents[2] / "docs"
Config = dict[str, Any]


def configurations(page: str) -> list[Config]:
    """The blocks of YAML of a page, in its order."""
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)]


@contextlib.contextmanager
def collector(otelcol: Path, config: Config, folder: Path, *options: str, **variables: str) -> Iterator[str]:
    """Runs it with variables of the environment; the URL of its OTLP receiver over HTTP. At the end it has written what
    it took in."""
    folder.mkdir(parents=True, exist_ok=True)
    file, log, port = folder / "collector.yaml", folder / "collector.log", free_port()
    file.write_text(json.dumps(config))
    environ = {"COLLECTOR_GRPC": f"127.0.0.1:{free_port()}", "COLLECTOR_HTTP": f"127.0.0.1:{port}", **variables}
    with log.open("wb") as out:
        command = [str(otelcol), "--config", str(file), *options]
        process = subprocess.Popen(command, env=os.environ | environ, stdout=out, stderr=out)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return b"Everything is ready" in log.read_bytes()

        until(is_ready, what="the Collector")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def export(url: str, body: bytes, signal: str = "traces") -> None:
    """A request."""
    answer = httpx.post(f"{url}/v1/{signal}", content=body, headers={"content-type": "application/x-protobuf"})
    assert answer.status_code == 200, answer.text
