"""What the processes of runs show at `/metrics` while a block runs, and a Prometheus that reads them as any would.

In: the folder in which the processes say where they listen. Out: per metric the labels of each sample that was not
zero, by process; the answers of Prometheus. A process that does not answer is asked again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.live_run import ROOT
from tests.serving import Background, free_port, until
from tracegrad.compose.die_with_parent import guarded

_EVERY_S = 0.5
_TIMEOUT_S = 5.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Scrapes(Background):
    """A thread that scrapes all of them again and again."""

    def __init__(self, targets: Path) -> None:
        super().__init__(self._scrape)
        self.moved: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        """Metric -> process -> names of the labels, joined by commas, of samples that were not zero."""
        self._targets = targets

    def __enter__(self) -> Scrapes:
        super().__enter__()
        return self

    def _scrape(self, stop: threading.Event) -> None:
        with ThreadPoolExecutor(16) as pool:
            while not stop.wait(_EVERY_S):
                list(pool.map(self._read, self._targets.glob("*.json")))

    def _read(self, file: Path) -> None:
        with contextlib.suppress(OSError, ValueError):
            [target] = json.loads(file.read_text())
            for family in text_string_to_metric_families(_get(f"http://{target['targets'][0]}/metrics")):
                for sample in family.samples:
                    if sample.value and sample.name.startswith("tracegrad_"):
                        self.moved[sample.name][target["labels"]["process"]].add(",".join(sorted(sample.labels)))


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """A server by our own settings, beside `folder/runs`; its URL."""
    for name in ("prometheus.yml", "alerts.yml"):
        (folder / "compose").mkdir(exist_ok=True)
        shutil.copy(ROOT / "compose" / name, folder / "compose" / name)
    url = f"http://127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder}/compose/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    command += [f"--web.listen-address={url.removeprefix('http://')}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(guarded(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: _is_ready(url), 60, what=f"prometheus ({folder}/prometheus.log)")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _is_ready(url: str) -> bool:
    try:
        return bool(_get(f"{url}/-/ready"))
    except OSError:
        return False


def ask(url: str, path: str, **query: str) -> Any:
    """What Prometheus' API says; an error of its own is told as that."""
    told = json.loads(_get(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}"))
    assert told["status"] == "success", told
    return told["data"]


def _get(url: str) -> str:
    with _OPENER.open(url, timeout=_TIMEOUT_S) as answer:
        return bytes(answer.read()).decode()
