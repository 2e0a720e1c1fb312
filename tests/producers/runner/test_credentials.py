"""Credentials end to end: agents that a runner started get what is theirs, and nothing of their neighbours'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.producers.keys import KEY, RUN_HASH
from tests.producers.runner.rig import Rig
from tests.serving import until
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.credentials import Holder, attempt_holder, credential, is_host, runner_holder
from tracegrad.schemas.records.calls import CallRecord, CallsClosed
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic

AGENT = """
import json, os, time, urllib.error, urllib.request
from pathlib import Path
from opentelemetry import propagate, trace

HERE, BASE, KEY = Path(__file__).parent, os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), os.environ["OPENAI_API_KEY"]
CHAT = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()

def post(url, body, headers):
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"} | headers
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code

def ask():
    headers = {}
    propagate.inject(headers)
    return post(BASE + "/v1/chat/completions", CHAT, headers)

def attack(victim):
    rollout, attempt = victim
    path = f"{BASE}/rollout/{rollout}/attempt/{attempt}"
    trace_of = {"traceparent": f"00-{rollout}{attempt}-00f067aa0ba902b7-01"}
    named = {"x-rollout-id": rollout, "x-attempt-id": attempt}
    span = {"traceId": rollout + attempt, "spanId": "00000000000000ff", "name": "execute_tool calc"}
    spans = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    return [
        post(path + "/v1/chat/completions", CHAT, {}),
        post(BASE + "/v1/chat/completions", CHAT, trace_of),
        post(BASE + "/v1/chat/completions", CHAT, named),
        post(path + "/begin", b'{"policy": "policy", "purpose": "train"}', {}),
        post(path + "/end", b"{}", {}),
        post(os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces", spans, {"authorization": "Bearer x"}),
        post(os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces", spans, {}),
    ]

def solve(task):
    with trace.get_tracer("t").start_as_current_span("solve"):
        if task["input"] == "tell":
            raise ValueError(f"my key is {KEY}")
        if task["input"] == "wait":
            (HERE / "waiting").touch()
            while not (HERE / "attacked").exists():
                time.sleep(0.05)
        else:
            (HERE / "statuses.json").write_text(json.dumps(attack(task["input"])))
            (HERE / "attacked").touch()
        return ask()
"""
GRADER = """
def grade(task, output, attempt):
    return 1.0 if output == 200 else 0.0
"""


def assert_untold(rig: Rig, folder: Path, holders: list[Holder]) -> None:
    """No secret of these is on any topic or in any log."""
    said = [value for topic in Topic for value in rig.values(topic)] + [
        path.read_bytes() for path in folder.glob("*.log")
    ]
    for holder in (*holders, runner_holder(RUN_HASH)):
        secret = credential(KEY, holder).rpartition(".")[2].encode()
        assert not [text for text in said if secret in text], holder


@pytest.mark.e2e
def test_an_agent_in_one_host_cannot_touch_an_attempt_in_another(tmp_path: Path) -> None:
    """Each way is refused, the neighbour goes on undisturbed, and no secret is told, though an agent quotes its own."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "grade.py").write_text(GRADER)
    with Rig() as rig:
        rig.start_gateways()
        env = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}
        agent = AgentConfig(callable="agent.py:solve", cwd=str(tmp_path), env=env, hosts=2, concurrency=2)
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), tmp_path)
        victim = rig.request(input="wait")
        until((tmp_path / "waiting").exists, 60)
        attacker = rig.request(input=[victim, rig.events(victim)[0].attempt_id])
        ends = [rig.final(rollout) for rollout in (victim, attacker)]
        # The last one, spans by its own credential, is taken as its own: assemble knows that the attempt is not.
        assert json.loads((tmp_path / "statuses.json").read_text()) == [403, 403, 403, 403, 403, 403, 200]
        teller = rig.final(rig.request(input="tell"))

        assert {end.state for end in ends} == {RolloutState.SUCCEEDED}
        assert [rig.rewards(rollout)["reward"].value for rollout in (victim, attacker)] == [1.0, 1.0]
        for rollout in (victim, attacker):
            assert [type(call) for call in rig.calls(rollout)] == [CallRecord, CallsClosed]
        hosts = [Holder(end.host or "") for end in (*ends, teller)]
        assert all(is_host(host) for host in hosts) and hosts[0] != hosts[1]
        assert (teller.error or "").partition(": ")[2] == f"my key is {hosts[2]}.{'*' * 32}"
        assert_untold(rig, tmp_path, hosts)


@pytest.mark.e2e
def test_a_command_that_tells_its_key_tells_no_secret(tmp_path: Path) -> None:
    """On stdout, which is its answer, and to those who read its log."""
    (tmp_path / "agent.sh").write_text('read -r task; echo "$OPENAI_API_KEY"')
    (tmp_path / "grade.py").write_text("def grade(task, output, attempt): return {'secret': float('***' in output)}")
    with Rig() as rig:
        rig.start_gateways()
        agent = AgentConfig(command=("sh", "agent.sh"), cwd=str(tmp_path))
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), tmp_path)
        rollout = rig.request(input="go")
        end = rig.final(rollout)
        assert (end.state, end.host, rig.rewards(rollout)["secret"].value) == (RolloutState.SUCCEEDED, None, 1.0)
        assert_untold(rig, tmp_path, [attempt_holder(rollout, end.attempt_id)])
