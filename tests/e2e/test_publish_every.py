"""Fewer versions than steps on real parts, the trainer killed between two: all adds up.

All parts are real but the engine, which answers by script.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.chaos_run import ChaosRun, ended, make_run
from tests.e2e.checks import check_end
from tests.e2e.engine_beside import EngineBeside
from tests.e2e.live_run import Observer
from tests.serving import until
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep, surviving_steps
from tracegrad.schemas.records.weights import WEIGHTS, VersionManifest
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(600)]
STEPS, EVERY = 5, 2


def test_each_second_update_and_the_last_step_lead_to_a_version(tmp_path: Path) -> None:
    """The run ends with what all steps learnt, and the audit and the count from the topics agree."""
    with EngineBeside(tmp_path / "engine.log") as engine:
        settings = {"publish.every": EVERY, "trainer.lr": 1e-6, "streams.workers": 1}
        run = make_run(tmp_path, engine=engine, settings=settings)
        with ended(run):
            run.start("--steps", str(STEPS))
            until(lambda: run.poll() is not None or (run.path / "endpoints.json").is_file(), 240, what="addresses")
            with Observer(run) as seen:
                until(lambda: run.poll() is not None or seen.step >= 1, 400, what="the first step")
                assert run.poll() is None, run.tail()
                os.kill(until(partial(run.pid_of, "trainer"), 60, what="the trainer"), signal.SIGKILL)
                assert until(lambda: [run.poll()] if run.poll() is not None else [], 400, what="the end") == [0]
        snapshot = check_end(ChaosRun(run, ()), min_steps=STEPS)
    told = [TRAINING_STEPS.decode(record.value) for record in snapshot.records[Topic.TRAINING_STEPS]]
    steps = surviving_steps(one for one in told if isinstance(one, TrainingStep))
    unpublished = 0
    for step in steps:
        unpublished += step.is_updated
        unpublished = 0 if unpublished == EVERY or step.step == STEPS else unpublished
        assert step.num_unpublished == unpublished
    results = json.loads((run.path / "results" / "results.json").read_text())
    assert (results["version"], results["num_unpublished"]) == (steps[-1].version, 0)
    words = [WEIGHTS.decode(record.value) for record in snapshot.records[Topic.WEIGHTS]]
    published = {word.version: word.step for word in words if isinstance(word, VersionManifest)}
    led_to = {one.version: one.step for before, one in pairwise(steps) if one.version != before.version}
    assert published == {0: 0} | led_to and len(published) < STEPS
