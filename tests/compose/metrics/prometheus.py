"""Prometheus' programs, as Debian has them, and series for their tests made of what processes count."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tracegrad.schemas.metrics import Metric, Metrics, declared

LABELS = {"job": "tracegrad", "run": "mine"}
needs_prometheus = pytest.mark.skipif(
    None in (shutil.which("promtool"), shutil.which("prometheus")),
    reason="there is no promtool, or no prometheus; apt install prometheus",
)
"""Of a test."""
Series = dict[str, list[str]]
"""A series in PromQL's spelling -> its values, one a minute; `_`: none, `stale`: the scrape lacked it."""


def promtool(*arguments: str | Path, text: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Runs it."""
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, timeout=60, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def spelt(name: str, labels: dict[str, str]) -> str:
    """A series."""
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


def sample(series: Series, metrics: Metrics, minute: int, *, process: str) -> None:
    """Adds what a scrape of a process gives in that minute."""
    of_process = {**LABELS, "process": process, "instance": f"mine/{process}"}
    for metric, values in metrics.series().items():
        for labels, value in values.items():
            name = spelt(metric.exposed, of_process | dict(zip(metric.labels, labels, strict=True)))
            known = series.setdefault(name, [])
            known += ["_"] * (minute - len(known)) + [f"{value:.6f}"]
    for known in series.values():
        known += ["stale"] * (minute + 1 - len(known))


def failures(series: Series, alert: str, minutes: Iterable[int], folder: Path, rules: Path) -> list[int]:
    """The minutes of those given at which an alert is firing: promtool's own account, where none is expected."""
    told: dict[str, Any] = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": " ".join(values)} for name, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []} for minute in minutes
                ],
            }
        ],
    }
    file = folder / "test.json"
    file.write_text(json.dumps(told))
    done = promtool("test", "rules", file)
    said = done.stdout + done.stderr
    found = [_minutes(text) for text in re.findall(rf"alertname: {alert}, time: (\S+?),", said)]
    assert (done.returncode == 0) is (not found), said
    return found


def _minutes(text: str) -> int:
    """`1h2m` or `46m`."""
    hours, minutes = (re.search(rf"(\d+){unit}", text) for unit in "hm")
    return 60 * int(hours[1] if hours else 0) + int(minutes[1] if minutes else 0)


def answerable(query: str) -> str:
    """With what Grafana puts in for its variables."""
    return query.replace("$__rate_interval", "1m").replace("$run", ".+")


def unknown_names(expressions: Iterable[str], known: Sequence[Metric] = tuple(declared())) -> set[str]:
    """Metrics of ours that no declaration has."""
    names = {name for text in expressions for name in re.findall(r"\btracegrad_\w+", text)}
    return names - {metric.exposed for metric in known}
