"""Runs in which no attempt can train: they end, and say why wherever their owner looks, and nowhere else."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.compose.run.misbehaviour import write_files
from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.runner.rig import running_engine
from tracegrad.compose.page.serve import board_of
from tracegrad.compose.run.load import load
from tracegrad.compose.run.report import make_report, tell_results
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.session import run_session
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(600)]

POLICY = Path(__file__).parents[3] / "examples" / "calculator" / "policy"
SECRET = "the answer is forty-two"
BROKEN: dict[str, tuple[str, str, str, str]] = {
    "the grader raises": (
        "grade.py",
        f"def grade(task, output, attempt):\n    raise KeyError({SECRET!r})\n",
        f"KeyError at grade.py:2 ({SECRET!r})",
        "Mend it at the line that is named",
    ),
    "the agent asks for another model": (
        "agent.py",
        "from openai import OpenAI\n\ndef solve(task):\n    question = [{'role': 'user', 'content': task['input']}]\n"
        "    return OpenAI(max_retries=0).chat.completions.create(model='gpt-9', messages=question)\n",
        "NotFoundError at agent.py:5 (Error code: 404 - model: expected 'policy'",
        'aliases = ["gpt-9"]',
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_run_that_cannot_learn_ends_and_says_why(
    case: tuple[str, str, str, str], broker: str, tmp_path: Path
) -> None:
    """With 78, the cause in the last ten lines, in results.json, in the outcome and first on the page; what it quotes
    is on no topic that others read."""
    file, code, cause, remedy = case
    write_files(tmp_path, [f"spread.{letter}" for letter in "abcdefgh"])
    (tmp_path / file).write_text(code)
    said = io.StringIO()
    with running_engine(ScriptedEngine()) as engine:
        flags: dict[str, Any] = {
            "run": "broken",
            "agent.callable": str(tmp_path / "agent.py:solve"),
            "agent.concurrency": 4,
            "tasks.file": str(tmp_path / "tasks.jsonl"),
            "tasks.group_size": 3,
            "reward.grader": str(tmp_path / "grade.py:grade"),
            "policy.model": str(POLICY),
            "engine.url": engine,
            "kafka.bootstrap_servers": broker,
            "kafka.topic_prefix": f"t{uuid.uuid4().hex[:12]}.",
            "trainer.steps": 30,
            "trainer.groups_per_step": 8,
        }
        settings = load(None, environ={}, flags=flags, for_training=True)
        show: dict[str, Any] = {"report": make_report, "last_words": tell_results}
        assert run_session(settings, tmp_path / "run", Show(said), for_training=True, **show) == 78
    lines = said.getvalue().splitlines()
    assert sum(line.startswith("cause: ") for line in lines) == 1
    assert any(cause in line and remedy in line for line in lines[-10:])
    run_dir = RunDir.open(tmp_path / "run")
    assert run_dir.outcome is not None and cause in run_dir.outcome.why
    (told,) = json.loads((run_dir.results / "results.json").read_text())["causes"]
    assert told["attempts"] == told["of"] >= 16 and told["stops"]
    assert cause in board_of(Wiring(run_dir), is_live=False).about.causes[0]
    wiring = Wiring(run_dir)
    for topic in (Topic.PROCESS_STATUS, Topic.WEIGHTS, Topic.TRAINING_STEPS, Topic.WEIGHT_ACKS):
        for record in read_to_end(wiring.log(), wiring.topics.name(topic)):
            assert SECRET.encode() not in (record.value or b"")
