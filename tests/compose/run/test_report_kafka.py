"""The report of a run whose own broker dies while it is made."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.serving import until
from tracegrad.compose.run import report, session
from tracegrad.compose.run.pipeline import _broker, prepare_run
from tracegrad.compose.run.process import ProcessSpec
from tracegrad.compose.run.session import Onlookers, watch_steps
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.llm_gateway.config import PolicyConfig

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


def kill_broker() -> None:
    """SIGKILL, as a crash would end it."""
    children = psutil.Process().children()
    (broker,) = [child for child in children if "tracegrad.compose.local_kafka.broker" in " ".join(child.cmdline())]
    broker.kill()
    until(lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE, what="the broker's end")


def test_a_broker_that_is_killed_twice_while_the_report_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once before the results, once before the audit: it is restarted, and the report waits for it."""
    settings = RunSettings(run="mine", policy=PolicyConfig(model="none"))
    wiring = Wiring(prepare_run(settings, tmp_path / "mine"))
    account, out = report.account, io.StringIO()

    def killing(*args: Any, **named: Any) -> Any:
        kill_broker()
        return account(*args, **named)

    def make(wiring: Wiring, show: Show) -> bool:
        kill_broker()
        return report.make_report(wiring, show)

    monkeypatch.setattr(report, "account", killing)
    show = Show(out)
    job = ProcessSpec(name="job", argv=("/bin/sh", "-c", "exit 0"), layer=1, is_job=True)
    onlookers = Onlookers(wiring, show, watch_steps)
    status = session.supervise(onlookers, [_broker(wiring), job], ends_with_jobs=True, keep=False, report=make)
    assert status == 0, out.getvalue()
    assert out.getvalue().count("kafka died, restarting") == 2
    assert "every id is accounted for" in out.getvalue()
