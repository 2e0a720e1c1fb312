"""Both gateways ask for a token, or for a credential, which is what runner and agents present."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.producers.keys import HOST, KEY, RUN_HASH
from tests.producers.runner.rig import Rig
from tracegrad.producers.runner.agent_environment import agent_environment, command_environment, host_environment
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.schemas.credentials import attempt_holder, proved_holder
from tracegrad.schemas.records.calls import CallRecord, CallsClosed
from tracegrad.schemas.records.rollouts import RolloutState

LLM_TOKEN, OTLP_TOKEN = "for the llm", "for=the otlp,100%"
AGENT = """
import json, os, urllib.request
from opentelemetry import propagate, trace

def solve(task):
    with trace.get_tracer("t").start_as_current_span("solve"):
        headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
        propagate.inject(headers)
        body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()
        request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)["choices"][0]["message"]["content"]

def grade(task, output, attempt):
    return 1.0
"""


@pytest.mark.e2e
def test_a_rollout_succeeds_through_guarded_gateways(tmp_path: Path) -> None:
    """Begin, call, the agent's spans, end: all are let in."""
    (tmp_path / "agent.py").write_text(AGENT)
    with Rig() as rig:
        rig.start_gateways(token=LLM_TOKEN, otlp_token=OTLP_TOKEN)
        agent = AgentConfig(
            callable="agent.py:solve",
            cwd=str(tmp_path),
            env={"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"},
            hosts=1,
        )
        reward = RewardConfig(grader="agent.py:grade")
        rig.start_runner(agent, reward, tmp_path, llm_token=LLM_TOKEN, otlp_token=OTLP_TOKEN)
        rollout = rig.request(input="go")
        event = rig.final(rollout)
        assert (event.state, event.error, event.calls_closed) == (RolloutState.SUCCEEDED, None, True)
        assert (event.spans_exported, event.spans_lost) == (1, 0)
        assert [type(call) for call in rig.calls(rollout)] == [CallRecord, CallsClosed]
        assert {service for service, _ in rig.spans()} == {"agent"}


def test_a_credential_stands_in_the_place_of_both_tokens() -> None:
    """An agent that a runner starts gets no token; one that nobody starts gets both, as key and as export header."""
    agent = AgentConfig(command=("x",), env={"OPENAI_API_KEY": "mine", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"})
    handles: dict[str, Any] = {"llm_url": "http://gw", "otlp_endpoint": "http://otlp", "log_dir": "/logs"}
    plain = RunnerHandles(run_hash=RUN_HASH, key=KEY, **handles)
    rollout = {"rollout": "ab12cd34" + "0" * 20, "attempt": "0a0b", "span": "f" * 16}
    guarded = msgspec.structs.replace(plain, llm_token="a", otlp_token="b,c=d")
    for env in (host_environment(agent, guarded, {}, holder=HOST), command_environment(agent, guarded, {}, **rollout)):
        assert proved_holder(KEY, env["OPENAI_API_KEY"]) in (HOST, attempt_holder("ab12cd34" + "0" * 20, "0a0b"))
        assert env["OTEL_EXPORTER_OTLP_HEADERS"] == f"a=b,x-api-key={env['OPENAI_API_KEY']}"
        assert not {"a", "b,c=d"} & {*env.values()} and "Bearer" not in env["OTEL_EXPORTER_OTLP_HEADERS"]
    env = agent_environment(guarded, "agent")
    assert env["OPENAI_API_KEY"] == "a"
    assert env["OTEL_EXPORTER_OTLP_HEADERS"] == "authorization=Bearer%20b%2Cc%3Dd"
    env = agent_environment(plain, "agent")
    assert env["OPENAI_API_KEY"] == "tracegrad"
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in env


ROOM = {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "4096", "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT": "4096"}


@pytest.mark.parametrize(
    ("environ", "env", "expected"),
    [
        ({}, {}, ROOM),
        ({"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "64"}, {}, {**ROOM, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "64"}),
        ({}, {"OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT": "9"}, {**ROOM, "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT": "9"}),
        ({"OTEL_ATTRIBUTE_COUNT_LIMIT": "64"}, {}, {"OTEL_ATTRIBUTE_COUNT_LIMIT": "64"}),
    ],
    ids=["none", "inherited", "of-the-settings", "of-everything"],
)
def test_an_agents_spans_have_room_for_a_long_conversation(
    environ: dict[str, str], env: dict[str, str], expected: dict[str, str]
) -> None:
    """SDKs keep the last 128 attributes, and what a span is was said first; a limit that somebody set stands."""
    agent = AgentConfig(command=("x",), env=env)
    handles = RunnerHandles(run_hash=RUN_HASH, key=KEY, llm_url="http://gw", otlp_endpoint="http://otlp", log_dir="/l")
    rollout = {"rollout": "ab12cd34" + "0" * 20, "attempt": "0a0b", "span": "f" * 16}
    for found in (
        host_environment(agent, handles, environ, holder=HOST),
        command_environment(agent, handles, environ, **rollout),
        environ | agent_environment(handles, "agent", own=environ | env),
    ):
        assert {name: value for name, value in found.items() if "COUNT_LIMIT" in name} == expected
