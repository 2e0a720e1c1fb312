"""examples/math on real parts but the model, each agent in the environment that its own list makes."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.benchmark_runs import ran
from tests.fake_engine.scripted import Reply, ScriptedEngine
from tests.producers.runner.rig import Rig, running_engine
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.load import load
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.session import run_session
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.topics import Topic

pytestmark = [
    *(pytest.mark.kafka, pytest.mark.torch, pytest.mark.e2e, pytest.mark.network),
    pytest.mark.timeout(500),
]

ROOT = Path(__file__).parents[2]
MATH = ROOT / "examples" / "math"


def called(name: str, **arguments: object) -> Reply:
    """A tool call in few tokens: the toy's are bytes, and the agents ask for 64."""
    text = json.dumps({"name": name, "arguments": arguments}, separators=(",", ":"))
    return Reply(f"<tool_call>{text}</tool_call>")


def multiplying(prompt: str, draw: int) -> Reply:
    """Guesses in every other rollout; else it calculates, reads the result and gives it."""
    result = re.search(r"<\|im_start\|>tool\n(\d+)<\|im_end\|>", prompt)
    if result is not None:
        return called("answer", number=int(result[1]))
    a, b = re.findall(r"\d{3,}", prompt)
    return called("calculator", expression=f"{a}*{b}") if draw % 2 else called("answer", number=12)


@pytest.mark.parametrize(
    ("agent", "requirements"),
    [("agent", "requirements"), ("langgraph_agent", "requirements_langgraph")],
    ids=["autogen", "langgraph"],
)
def test_an_agent_trains_in_its_own_environment(agent: str, requirements: str, tmp_path: Path, broker: str) -> None:
    """A step is taken; calls have their tools and their agent's name, and the bonus is paid for calculations alone."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "uv", "venv", "-q", "--python", "3.11", str(tmp_path / "venv")], check=True)
    install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--python", str(python), "-r"]
    subprocess.run([*install, str(MATH / f"{requirements}.txt")], check=True)
    task = {"id": "1", "input": "There are 540 marbles in each of 524 boxes. How many?", "expected": "282960"}
    for name in ("tasks", "eval"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(task | {"id": name}))
    flags = {
        "agent.callable": f"{MATH / agent}.py:solve",
        "agent.python": str(python),
        "tasks.file": str(tmp_path / "tasks.jsonl"),
        "tasks.eval_file": str(tmp_path / "eval.jsonl"),
        "policy.model": str(ROOT / "examples" / "calculator" / "policy"),
        "kafka.bootstrap_servers": broker,
        "kafka.topic_prefix": f"t{uuid.uuid4().hex[:12]}.",
        "engine.max_model_len": 512,
        "trainer.steps": 1,
        "trainer.groups_per_step": 1,
        "trainer.threads": 1,
    }
    with running_engine(ScriptedEngine(policy=multiplying)) as url:
        settings = load(MATH / "tracegrad.toml", environ={}, flags=flags | {"engine.url": url}, for_training=True)
        assert run_session(settings, tmp_path / "run", Show(io.StringIO()), for_training=True) == 0
    topics = Rig(KafkaLog(broker), Wiring(RunDir.open(tmp_path / "run")).topics)
    episodes = [EPISODES.decode(value) for value in topics.values(Topic.EPISODES)]
    calls = [call for one in episodes for call in one.calls]
    assert {(len(one.calls), one.reward) for one in episodes} == {(1, 0.0), (2, 1.0)}
    assert {(call.tools[0].name, sum(paid.value for paid in call.rewards)) for call in calls if call.tools} == {
        *(("calculator", 0.1), ("answer", 0.0)),
    }
    assert {call.agent for call in calls} == {"solver" if agent == "agent" else "agent"}
    rows = [line.split(" | ") for line in ran("math_runs", str(tmp_path / "run"))[1:3]]
    assert [row[1] for row in rows] == ["0", "1"], "a row each: before the step, and after it"
    assert all(re.match("[01] of 1: ", row[2]) for row in rows)
