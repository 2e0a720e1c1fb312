"""What the supervisor counts of its processes, and what it takes back of one that has gone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.compose.run.children import FOREVER, QUICK, shell
from tracegrad.compose.run.supervisor import OutcomeKind, Supervisor
from tracegrad.schemas.metrics import PROCESSES_RUNNING, Metrics

pytestmark = pytest.mark.slow


def test_metrics_say_who_runs_and_what_was_restarted(tmp_path: Path) -> None:
    """And what tells Prometheus of a process goes with it, however it ended."""
    target = tmp_path / "metrics" / "job.json"
    target.parent.mkdir()
    script = f"[ -e {tmp_path}/twice ] && exit 0; [ -e {tmp_path}/once ] && mv {tmp_path}/once {tmp_path}/twice"
    script += f"; [ -e {tmp_path}/twice ] || touch {tmp_path}/once {target}; kill -9 $$"
    job = msgspec.structs.replace(shell("job", script, is_job=True), target=target)
    metrics, seen = Metrics(), []
    supervisor = Supervisor(
        [shell("service", FOREVER), job],
        logs=tmp_path,
        backoff=QUICK,
        metrics=metrics,
        on_change=lambda: seen.append((metrics.value(PROCESSES_RUNNING), target.exists())),
    )
    assert supervisor.run().kind is OutcomeKind.DONE
    assert metrics.snapshot() == {
        "process_restarts{name=job}": 2,
        "processes_running{name=job}": 0,
        "processes_running{name=service}": 0,
    }
    assert max(running for running, _ in seen) == 2 and not target.exists()
