"""Held-out passes beside training on captured traffic, on real parts but the model: killed, stopped and started."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.compose.run.rated_traffic import RATED, TRAINING, asked, episodes, receipt, steps_of
from tests.compose.run.running import RunningUp, settled
from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.runner.rig import running_engine
from tests.serving import until
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.client.feedback import REWARD_TOKEN, REWARDS_URL, send_feedback
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(500)]

CALCULATOR = Path(__file__).parents[3] / "examples" / "calculator"
NUM_TASKS = 6
HELD_OUT = f"""
agent.callable = "{CALCULATOR / "agent.py"}:solve"
agent.concurrency = 2
agent.hosts = 1
tasks.eval_file = "eval.jsonl"
tasks.eval_every = 1
reward.grader = "grade.py:grade"
"""
GRADER = """
def grade(task, output, attempt):
    return float(ord(attempt["calls"][0]["call_id"][-1]) % 2)
"""


def test_what_is_held_out_is_run_before_beside_and_after_training_on_traffic(tmp_path: Path, broker: str) -> None:
    """A first pass in which tasks and runner are killed and the run is stopped goes on when it is started again; none
    of its episodes trains, whatever is said of it; the best version, every score and every id are told."""
    lines = (CALCULATOR / "eval.jsonl").read_text().splitlines()[:NUM_TASKS]
    (tmp_path / "eval.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "grade.py").write_text(GRADER)
    with running_engine(engine := ScriptedEngine(delay_s=45.0)) as url:
        settled(tmp_path, "rated", broker, url, RATED.format(idle_s=0.5) + TRAINING + HELD_OUT)
        with RunningUp(tmp_path) as run:
            until(lambda: run.pids("tasks"), 150, what="tasks")
            wiring = Wiring(RunDir.open(tmp_path / "runs" / "rated"))
            until(lambda: passes(wiring, broker), 60, what="the first pass")
            for name in ("tasks", "runner"):
                os.kill(until(lambda name=name: run.pids(name), 30, what=name)[0], signal.SIGKILL)  # type: ignore[misc]
        assert [(one.number, one.score) for one in passes(wiring, broker)] == [(0, None)]
        assert told(tmp_path, "results")[-1]["before"] is None
        engine.delay_s = 0.0
        with RunningUp(tmp_path) as run:
            given, agents = until(lambda: run.ask("env", "--feedback"), 120), run.ask("env")
            to = {"url": given[REWARDS_URL], "token": given[REWARD_TOKEN]}
            until(lambda: passes(wiring, broker)[0].score, 120, what="its score")
            assert steps_of(wiring, broker) == []
            held_out = [one for one in episodes(wiring, broker) if one.purpose is Purpose.VALIDATION and one.calls]
            about_held_out = send_feedback(trace_id=held_out[-1].episode_id, value=1, name="thumb", **to)
            answers = [until(lambda: asked(agents["OPENAI_BASE_URL"]), 60) for _ in range(8)]
            for number, answer in enumerate(answers):
                send_feedback(response_id=str(answer), value=number / 7, name="thumb", **to)
            until(
                lambda: [one.step for one in passes(wiring, broker) if one.score] == [0, 1, 2], 200, what="the passes"
            )
            report = until(lambda: (found := run.ask("audit"))["missing"] == [] and found, 60)
            assert receipt(to["url"], to["token"], about_held_out) == "not_counted"
    check_told(tmp_path, wiring, broker)
    terms = Counter(report["episodes"]["terms"])
    assert (terms["in groups"], terms["validation"]) == (8, 3 * NUM_TASKS)
    assert set(terms) <= {"in groups", "validation", "superseded"}
    assert report["groups"]["terms"] == {"trained": 8}


def check_told(folder: Path, wiring: Wiring, broker: str) -> None:
    """On `weights`, in lines, in results.json: the same three passes of the versions of their steps."""
    scored = [one for one in passes(wiring, broker) if one.score]
    assert [(one.number, one.step, one.num_tasks) for one in scored] == [(n, n, NUM_TASKS) for n in range(3)]
    means = [one.score.mean for one in scored if one.score and one.score.mean is not None]
    results = json.loads((folder / "runs" / "rated" / "results" / "results.json").read_text())
    assert [one["mean"] for one in results["held_out"]] == means
    assert results["before"]["versions"] == [{"version": 0, "share": 1.0}] and results["after"]["version"] == 2
    best = results["best"]
    assert best["score"]["mean"] == max(means) and (Path(best["folder"]) / "model.safetensors").is_file()
    lines = [line for line in told(folder, "validation") if "mean" in line]
    assert [(line["step"], line["mean"]) for line in lines] == [(n, mean) for n, mean in enumerate(means)]
    assert told(folder, "results")[-1]["best"] == best


def told(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of that kind that `up --json` printed since it was started last."""
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def passes(wiring: Wiring, broker: str) -> list[HeldOutPass]:
    """Each as it was said last."""
    records = (
        WEIGHTS.decode(record.value) for record in read_to_end(KafkaLog(broker), wiring.topics.name(Topic.WEIGHTS))
    )
    found = {word.number: word for word in records if isinstance(word, HeldOutPass)}
    return [found[number] for number in sorted(found)]
