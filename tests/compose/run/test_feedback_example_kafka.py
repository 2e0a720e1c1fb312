"""examples/feedback on real parts but the model: its chat server in its own environment, its crowd, our processes each
killed once. Every thumb ends as its receipt says."""

from __future__ import annotations

import json
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.fake_engine.scripted import Reply, ScriptedEngine
from tests.producers.runner.rig import running_engine

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[3]
CONVERSATIONS = 60
VERBS = {
    **dict.fromkeys(("plus", "and"), operator.add),
    **dict.fromkeys(("minus", "less"), operator.sub),
    **dict.fromkeys(("times", "by"), operator.mul),
    **dict.fromkeys(("over", "per"), operator.floordiv),
}


def answering(prompt: str, draw: int) -> Reply:
    """Every other question rightly: the batch has advantages. In few tokens, for what is cut short trains nothing."""
    a, first, b, second, c = re.findall(r"what is (\d+) (\w+) (\d+) (\w+) (\d+)\?", prompt)[-1]
    right = VERBS[second](VERBS[first](int(a), int(b)), int(c))
    return Reply(str(right) if draw % 2 else "unknown")


def test_every_thumb_of_a_crowd_ends_as_its_receipt_says(tmp_path: Path) -> None:
    """None is lost and none counted twice, though each process but the engine is killed on the way; a forged one, by
    whatever way it comes, counts for nothing."""
    few = tmp_path / "eval.jsonl"
    few.write_text("".join((ROOT / "examples" / "calculator" / "eval.jsonl").read_text().splitlines(True)[:8]))
    with running_engine(ScriptedEngine(policy=answering)) as engine:
        command = [sys.executable, str(ROOT / "benchmarks" / "feedback.py"), str(tmp_path / "run"), "--kill"]
        command += ["--conversations", str(CONVERSATIONS), "--at-once", "4", "--set", f"engine.url={engine}"]
        command += ["--set", "trainer.groups_per_step=8", "--set", "trainer.steps=2", "--set", f"tasks.eval_file={few}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=450, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    feedback = result["feedback"]
    assert len(result["killed"]) >= 8
    assert feedback["accepted"] > CONVERSATIONS // 4 and feedback["lost"] == 0
    assert set(feedback["states"]) <= {"joined", "late"} and feedback["states"]["joined"] > CONVERSATIONS // 4
    assert feedback["answers_with_another_mean"] == 0
    assert feedback["answers_in_transitions"] == feedback["answers_joined"] > 0
    assert 0.0 <= result["greedy"] <= 1.0 and result["audit"]["episodes"]["validation"] == 2 * 8
    assert result["forged_on_topic"] > 0 and result["missing"] == 0 and result["versions"] == 2
