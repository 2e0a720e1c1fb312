"""`/metrics`: what is counted is shown, in bounds, to whom it may concern, and nobody waits for it."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.metrics.prometheus import needs_prometheus, promtool
from tracegrad.compose.metrics import endpoint
from tracegrad.compose.metrics.endpoint import announce, serving_metrics, target_file
from tracegrad.compose.metrics.exposition import exposition
from tracegrad.schemas.metrics import CALLS, DEAD_LETTERS, LAG, SPLICES, Counter, Gauge, Metrics, declared


@pytest.fixture(name="metrics")
def counted() -> Metrics:
    """A process's."""
    return Metrics()


@pytest.fixture(name="url")
def served(metrics: Metrics, tmp_path: Path) -> Iterator[str]:
    """Where they are."""
    with serving_metrics(tmp_path, run="mine", process="llm", metrics=metrics):
        yield address(tmp_path / "mine.llm.json")


def address(file: Path) -> str:
    """What the target file says."""
    [target] = json.loads(file.read_text())
    return f"http://{target['targets'][0]}/metrics"


def get(url: str, **headers: str) -> str:
    """A scrape."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
        return bytes(answer.read()).decode()


def test_a_scrape_shows_what_was_counted_until_then(url: str, metrics: Metrics) -> None:
    """And what the system says of the process."""
    metrics.add(CALLS, num=3)
    metrics.add(DEAD_LETTERS, 'a "quoted"\nreason')
    metrics.set(LAG, 7)
    text = get(url)
    assert "\ntracegrad_calls_total 3.0\n" in text and "\ntracegrad_lag_records 7.0\n" in text
    assert '\ntracegrad_dead_letters_total{reason="a \\"quoted\\"\\nreason"} 1.0\n' in text
    assert "\nprocess_resident_memory_bytes " in text and "\nprocess_cpu_seconds_total " in text


def test_the_target_goes_with_the_process_and_comes_with_its_successor(tmp_path: Path, metrics: Metrics) -> None:
    """At another port, and under the same name, so that its series go on."""
    seen = []
    for _ in range(2):
        with serving_metrics(tmp_path, run="mine", process="llm", metrics=metrics):
            [target] = json.loads((tmp_path / "mine.llm.json").read_text())
            seen.append(target)
            assert get(address(tmp_path / "mine.llm.json"))
        assert not (tmp_path / "mine.llm.json").exists()
        with pytest.raises(urllib.error.URLError):
            get(f"http://{target['targets'][0]}/metrics")
    assert seen[0]["labels"] == seen[1]["labels"] == {"run": "mine", "process": "llm", "instance": "mine/llm"}


def test_a_process_that_cannot_listen_goes_on(
    tmp_path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so; likewise where the file cannot be written."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(endpoint, "_PORT", taken.getsockname()[1])
        with serving_metrics(tmp_path, run="mine", process="llm", metrics=metrics):
            metrics.add(CALLS)
    monkeypatch.undo()
    (tmp_path / "a-file").write_text("")
    with serving_metrics(tmp_path / "a-file", run="mine", process="llm", metrics=metrics):
        metrics.add(CALLS)
    assert metrics.value(CALLS) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_pages_of_other_sites_and_other_paths_are_refused(url: str) -> None:
    """A name that was bound to loopback is still another Host; a refusal echoes nothing."""
    for host in ("evil.example", "evil.example:9090", "127.0.0.1.evil.example"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(url, Host=host)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(url.removesuffix("/metrics") + "/other")
    assert get(url, Host="localhost") and get(url + "?name[]=x")


def test_clients_that_never_ask_hold_nobody_up(url: str, metrics: Metrics) -> None:
    """A hundred of them, who are let go of; meanwhile the work loop counts on."""
    host, port = re.findall(r"//(.*):(\d+)/", url)[0]
    idle = [socket.create_connection((host, int(port)), timeout=5) for _ in range(100)]
    started = time.monotonic()
    for _ in range(5):
        metrics.add(CALLS)
        assert "tracegrad_calls_total" in get(url)
    assert time.monotonic() - started < 3.0
    # All but the newest few are at their end.
    assert sum(one.recv(1) == b"" for one in idle[:90]) == 90
    for one in idle:
        one.close()


def test_however_often_it_is_asked_the_text_is_made_once_a_second(
    url: str, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that an agent that asks without end takes no time from the work loop that the text would."""
    made: list[object] = []

    def make(registry: object) -> bytes:
        made.append(registry)
        return b"text"

    monkeypatch.setattr("tracegrad.compose.metrics.exposition.generate_latest", make)
    started = time.monotonic()
    for _ in range(50):
        get(url)
    assert len(made) <= 1 + (time.monotonic() - started) / endpoint._EVERY_S


def test_a_hundred_thousand_names_stay_below_a_megabyte() -> None:
    """Also where each is long and of four bytes a character, and every metric with labels is full of them."""
    metrics = Metrics()
    labelled = [metric for metric in declared() if isinstance(metric, Counter) and metric.labels]
    for number in range(100_000):
        metric = labelled[number % len(labelled)]
        metrics.add(metric, *(f"{number}{chr(0x1F600) * 200}" for _ in metric.labels))
    text = exposition(metrics)
    assert len(text) < 1_000_000
    assert sum(metrics.value(metric) for metric in labelled) == 100_000


def test_a_value_that_has_no_bytes_is_shown_all_the_same() -> None:
    """JSON can spell half a surrogate pair."""
    metrics = Metrics()
    metrics.add(SPLICES, "\ud800", "why")
    assert b'kind="?"' in exposition(metrics)


@needs_prometheus
def test_promtool_finds_no_fault_with_any_metric() -> None:
    """`promtool check metrics` on a process that counts all that is declared."""
    metrics = Metrics()
    for metric in declared():
        if isinstance(metric, Counter):
            metrics.add(metric, *("value" for _ in metric.labels))
        elif isinstance(metric, Gauge):
            metrics.set(metric, 1, *("value" for _ in metric.labels))
    done = promtool("check", "metrics", text=exposition(metrics))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_target_is_told_with_what_prometheus_must_know_of_it(tmp_path: Path) -> None:
    """Its run and process; scheme and path where they are not the usual ones."""
    announce(target_file(tmp_path, "mine", "llm"), "http://127.0.0.1:1", run="mine", process="llm")
    announce(target_file(tmp_path, "mine", "engine"), "https://gpu:8000/base", run="mine", process="engine")
    told = {file.name: json.loads(file.read_bytes()) for file in tmp_path.iterdir()}
    usual = {"run": "mine", "process": "llm", "instance": "mine/llm"}
    other = {"run": "mine", "process": "engine", "instance": "mine/engine"}
    assert told == {
        "mine.llm.json": [{"targets": ["127.0.0.1:1"], "labels": usual}],
        "mine.engine.json": [
            {"targets": ["gpu:8000"], "labels": {**other, "__scheme__": "https", "__metrics_path__": "/base/metrics"}}
        ],
    }
