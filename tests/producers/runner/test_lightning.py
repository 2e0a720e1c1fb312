"""An agent of Agent Lightning 1.0 is a command like any other: its variables lead it to both routes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.producers.keys import KEY, RUN_HASH
from tests.producers.runner.rig import Rig
from tracegrad.producers.runner.agent_environment import command_environment, of_task
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.schemas.credentials import attempt_holder, credential
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.calls import CallRecord, CallsClosed
from tracegrad.schemas.records.rollouts import RolloutState

ROLLOUT = RUN_HASH + "0" * 20
AGENT = """
import json, os, urllib.request

class Agent:
    def post(self, url, body):
        headers = {"authorization": "Bearer " + os.environ["AGL_KEY"], "content-type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        return json.load(urllib.request.urlopen(request, timeout=20))

    def run(self):
        messages = [{"role": "user", "content": os.environ["QUESTION"]}]
        url = os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions"
        self.post(url, {"model": "policy", "messages": messages})
        self.post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": 0.5}})

Agent().run()
"""


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("input", '{"question": "one?", "of": ["a", {"b": 2}]}'),
        ("input.question", "one?"),
        ("input.of.0", "a"),
        ("input.of.1", '{"b": 2}'),
        ("input.of.1.b", "2"),
        ("inputs", "inputs"),
    ],
)
def test_variables_of_the_task(path: str, text: str) -> None:
    """A text as it is, all else as JSON; what is no path is given itself."""
    task = {"question": "one?", "of": ["a", {"b": 2}]}
    assert of_task({"IT": path}, task) == {"IT": text}


@pytest.mark.parametrize("path", ["input.answer", "input.of.9", "input.of.-1", "input.question.0"])
def test_a_path_that_leads_nowhere_names_itself(path: str) -> None:
    """The rollout fails, with what to mend."""
    with pytest.raises(ValueError, match=r"env_map: IT: .* mend the path"):
        of_task({"IT": path}, {"question": "one?", "of": []})


def test_a_command_is_told_its_routes_and_no_purpose() -> None:
    """The path says `train` to all; neither the task nor the settings displace the credential."""
    handles = RunnerHandles(run_hash=RUN_HASH, key=KEY, llm_url="http://gw:1", otlp_endpoint="http://o:2", log_dir="/l")
    env_map = {"AGL_KEY": "input", "OPENAI_API_KEY": "input", "QUESTION": "input"}
    agent = AgentConfig(command=("x",), env_map=env_map)
    variables = command_environment(agent, handles, {}, rollout=ROLLOUT, attempt="9a3c", span="0" * 16, task="what?")
    shown = credential(KEY, attempt_holder(ROLLOUT, "9a3c"))
    place = f"http://gw:1/proxy/rollout/{ROLLOUT}/attempt/9a3c/mode/train/openai/v1"
    assert variables["AGL_OPENAI_BASE_URL"] == place
    assert variables["AGL_EVENT_URL"] == f"http://gw:1/api/rollouts/{ROLLOUT}/attempt/9a3c/events"
    assert variables["AGL_KEY"] == variables["OPENAI_API_KEY"] == shown
    assert variables["QUESTION"] == "what?"


def test_settings_that_go_together() -> None:
    """A grader or a trusted agent, or both; variables of the task are a command's."""
    assert RewardConfig(grader="g.py:grade").counted == ("grader:grade",)
    trusted = RewardConfig(trust_agent=True)
    assert (trusted.counted, trusted.awaited) == (("agent",), ("agent",))
    both = RewardConfig(grader="g.py:grade", trust_agent=True, sources=("human:*",))
    assert (both.counted, both.awaited) == (("grader:grade", "human:*", "agent"), ("reward", "agent"))
    with pytest.raises(ConfigurationError, match="trust_agent"):
        RewardConfig()
    with pytest.raises(ConfigurationError, match="env_map"):
        AgentConfig(callable="a.py:solve", env_map={"A": "input"})


@pytest.mark.e2e
def test_it_runs_unchanged(tmp_path: Path) -> None:
    """Its call is the attempt's, its reward is `agent`'s beside the grader's; a task that lacks what `env_map` names
    fails once and is graded."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "grade.py").write_text("def grade(task, output, attempt): return 1.0 if attempt['calls'] else 0.0")
    agent = AgentConfig(
        command=(sys.executable, "agent.py"), cwd=str(tmp_path), env_map={"QUESTION": "input.question"}, concurrency=2
    )
    reward = RewardConfig(grader="grade.py:grade", trust_agent=True)
    awaited = {"rewards_awaited": reward.awaited}
    with Rig() as rig:
        rig.start_gateways()
        rig.start_runner(agent, reward, tmp_path)
        task: Any = {"question": "what is 12 plus 30?"}
        good, bad = rig.request(input=task, **awaited), rig.request(input=[], **awaited)
        event = rig.final(good)
        assert (event.state, event.rewards_awaited) == (RolloutState.SUCCEEDED, ("reward", "agent")), event.error
        assert [type(call) for call in rig.calls(good)] == [CallRecord, CallsClosed]
        told = {name: (one.value, one.source) for name, one in rig.rewards(good).items()}
        assert told == {"agent": (0.5, "agent"), "reward": (1.0, "grader:grade")}, json.dumps(told)
        assert rig.final(bad).state is RolloutState.FAILED and "env_map" in (rig.final(bad).error or "")
        assert rig.rewards(bad)["reward"].value == 0.0
