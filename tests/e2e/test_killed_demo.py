"""A demo of six steps, in which three processes are killed, each when its step has come: every id is accounted for."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.chaos_run import ChaosRun, ended, make_run
from tests.e2e.checks import check_end
from tests.e2e.live_run import LiveRun, Observer
from tests.serving import until

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(900)]
STEPS = 6
KILLS = {1: "llm", 2: "streams-assemble-0", 4: "trainer"}
"""Behind which step who is killed."""


def test_nothing_is_lost_or_doubled_in_a_demo_under_three_kills(tmp_path: Path) -> None:
    """All parts are real; what the engine sampled was sampled by the weights whose label it bears."""
    run = make_run(tmp_path, settings={"streams.workers": 1})
    with ended(run):
        run.start("--steps", str(STEPS))
        until(lambda: run.poll() is not None or (run.path / "endpoints.json").is_file(), 240, what="addresses")
        with Observer(run) as seen:
            for step, name in KILLS.items():
                until(partial(_has_come, run, seen, step), 400, what=f"step {step}")
                assert run.poll() is None, run.tail()
                os.kill(until(partial(run.pid_of, name), 60, what=name), signal.SIGKILL)
            assert until(lambda: [run.poll()] if run.poll() is not None else [], 400, what="the end") == [0], run.tail()
    check_end(ChaosRun(run, ()), min_steps=STEPS, is_vllm=True)


def _has_come(run: LiveRun, seen: Observer, step: int) -> bool:
    return run.poll() is not None or seen.step >= step
