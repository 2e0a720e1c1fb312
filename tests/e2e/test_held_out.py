"""Held-out passes beside training on real parts, tasks and trainer killed during one: every pass once, the best kept.

All parts are real but the engine, which answers by script; the grader here draws by lot, so that passes differ.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.chaos_run import ChaosRun, ended, make_run
from tests.e2e.checks import check_end
from tests.e2e.engine_beside import EngineBeside
from tests.e2e.live_run import LiveRun, Observer
from tests.serving import until
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(600)]
STEPS, EVERY, KEPT, NUM_TASKS, NUM_SAMPLES = 8, 2, 5, 4, 2
SETTINGS = {
    "tasks.eval_every": EVERY,
    "tasks.eval_samples": NUM_SAMPLES,
    "policy.validation_temperature": 1.0,
    "trainer.keep_versions": KEPT,
    "trainer.lr": 1e-6,
    "streams.workers": 1,
}

GRADER = """
def grade(task, output, attempt):
    return float(ord(attempt["calls"][0]["call_id"][-1]) % 2)
"""


def test_every_pass_is_made_once_and_the_best_version_is_kept(tmp_path: Path) -> None:
    """Counted by hand from the topics, and as results.json, the lines and the folders tell it."""
    (tmp_path / "grade.py").write_text(GRADER)
    grader = {"reward.grader": f"{tmp_path / 'grade.py'}:grade"}
    with EngineBeside(tmp_path / "engine.log") as engine:
        run = make_run(tmp_path, engine=engine, settings=SETTINGS | grader)
        with ended(run):
            run.start("--steps", str(STEPS))
            until(lambda: run.poll() is not None or (run.path / "endpoints.json").is_file(), 240, what="addresses")
            with Observer(run) as seen:
                for name, step in (("tasks", EVERY), ("trainer", 2 * EVERY)):
                    until(partial(_has_come, run, seen, step), 400, what=f"step {step}")
                    assert run.poll() is None, run.tail()
                    os.kill(until(partial(run.pid_of, name), 60, what=name), signal.SIGKILL)
                assert until(lambda: [run.poll()] if run.poll() is not None else [], 400, what="the end") == [0]
        snapshot = check_end(ChaosRun(run, ()), min_steps=STEPS)
    words = [WEIGHTS.decode(record.value) for record in snapshot.records[Topic.WEIGHTS]]
    passes = [word for word in words if isinstance(word, HeldOutPass) and word.score is not None]
    assert [one.step for one in passes] == [*range(0, STEPS + 1, EVERY)]
    results = json.loads((run.path / "results" / "results.json").read_text())
    assert [(told["number"], told["step"]) for told in results["held_out"]] == [(n, n * EVERY) for n in range(5)]
    for told in results["held_out"]:
        assert (told["num_tasks"], [one["k"] for one in told["pass_at"]]) == (NUM_TASKS, [1, NUM_SAMPLES])
        assert sum(one["share"] for one in told["versions"]) == pytest.approx(1.0)
        assert told["mean"] == pytest.approx(told["pass_at"][0]["share"])
    assert results["held_out"][-1]["versions"] == [{"version": results["version"], "share": 1.0}]
    _check_best(run, results)


def _has_come(run: LiveRun, seen: Observer, step: int) -> bool:
    return run.poll() is not None or seen.step >= step


def _check_best(run: LiveRun, results: dict[str, object]) -> None:
    best = results["best"]
    assert isinstance(best, dict) and isinstance(results["held_out"], list)
    assert best["score"] == max(results["held_out"], key=lambda told: told["mean"]), "of equal ones the first"
    assert (Path(best["folder"]) / "model.safetensors").is_file()
    assert best["folder"].endswith(f"-v{best['version']}-{best['folder'].rpartition('-')[2]}")
    lines = [json.loads(line) for line in run.output.read_text().splitlines() if line.startswith("{")]
    told = [line for line in lines if line["kind"] == "validation" and "mean" in line]
    assert [line["step"] for line in told] == [held_out["step"] for held_out in results["held_out"]]
    score = best["score"]
    assert told[score["number"]]["text"].startswith(f"held-out at step {score['step']}: {score['mean']:.3f} (95% ")
    (shown,) = [line["best"] for line in lines if line["kind"] == "results"]
    assert shown == best
