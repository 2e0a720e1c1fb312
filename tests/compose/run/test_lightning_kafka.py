"""A run of an agent of Agent Lightning 1.0, trusted, on real Kafka: what it posts is what is trained on."""

from __future__ import annotations

import io
import json
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.runner.rig import Rig, running_engine
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.load import load
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.session import run_session
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import REWARDS
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(300)]

POLICY = Path(__file__).parents[3] / "examples" / "calculator" / "policy"
MEMBERS = 2
AGENT = """
import json, os, urllib.request

def post(url, body):
    headers = {"authorization": "Bearer " + os.environ["AGL_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=60))

messages = [{"role": "user", "content": os.environ["QUESTION"]}]
post(os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions", {"model": "policy", "messages": messages})
for value in (1e6, float(os.environ["WORTH"])):
    post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": value}})
"""


def test_what_a_trusted_agent_posts_last_is_trained_on(tmp_path: Path, broker: str) -> None:
    """No grader; each member's reward is its agent's, signed by the gateway, and the group trains."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "1", "input": {"q": "what is 12 plus 30?", "worth": 0.75}}))
    flags = {
        "run": "lightning",
        "agent.command": (sys.executable, str(tmp_path / "agent.py")),
        "agent.cwd": str(tmp_path),
        "agent.env_map": {"QUESTION": "input.q", "WORTH": "input.worth"},
        "tasks.file": str(tmp_path / "tasks.jsonl"),
        "tasks.group_size": MEMBERS,
        "reward.trust_agent": True,
        "policy.model": str(POLICY),
        "streams.deadline_s": 1.0,
        "kafka.bootstrap_servers": broker,
        "kafka.topic_prefix": f"t{uuid.uuid4().hex[:12]}.",
        "trainer.steps": 1,
        "trainer.groups_per_step": 1,
    }
    with running_engine(ScriptedEngine()) as url:
        settings = load(None, environ={}, flags=flags | {"engine.url": url}, for_training=True)
        assert run_session(settings, tmp_path / "run", Show(io.StringIO()), for_training=True) == 0
    topics = Rig(KafkaLog(broker), Wiring(RunDir.open(tmp_path / "run")).topics)
    rewards = [REWARDS.decode(value) for value in topics.values(Topic.REWARDS)]
    assert [(reward.name, reward.value, reward.source) for reward in rewards] == [("agent", 0.75, "agent")] * MEMBERS
    episodes = [EPISODES.decode(value) for value in topics.values(Topic.EPISODES)]
    assert [(episode.reward, len(episode.calls)) for episode in episodes] == [(0.75, 1)] * MEMBERS
    (summary,) = (decode_group(value)[0] for value in topics.values(Topic.TRANSITIONS))
    assert [member.reward for member in summary.members] == [0.75] * MEMBERS
