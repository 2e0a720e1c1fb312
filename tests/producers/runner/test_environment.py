"""What user code is given: agents and graders get no secret of the environment that tracegrad runs in, and no agent
what its grader knows."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.producers.keys import HOST, KEY, RUN_HASH
from tests.producers.runner.rig import Rig
from tracegrad.producers.runner.agent_environment import (
    agent_environment,
    command_environment,
    grader_environment,
    host_environment,
    inherited,
)
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.schemas.credentials import attempt_holder, proved_holder
from tracegrad.schemas.records.calls import CallRecord, CallsClosed
from tracegrad.schemas.records.rollouts import RolloutState

CANARIES = {
    "HF_TOKEN": "canary-hf",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
    "KAFKA_PASSWORD": "canary-kafka",
    "SOMETHING_ELSE": "canary-else",
}
EXPECTED = "what-is-expected"
LOOK = """
import json, os, sys

def held():
    # All that a process is given: argv, environment, open files, the names in its folder.
    fds = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    argv = open("/proc/self/cmdline").read()
    return [dict(os.environ), open("/proc/self/environ").read(), argv, fds, os.listdir(".")]

def solve(task):
    return json.dumps([task, held()])

def grade(task, output, attempt):
    with open(os.environ["SEEN"], "w") as file:
        json.dump({"agent": output, "grader": held()}, file)
    return float(task["expected"] in ("what-is-expected",))

if __name__ == "__main__":
    print(solve(sys.stdin.read()))
"""


@pytest.mark.e2e
@pytest.mark.parametrize("how", [{"callable": "look.py:solve"}, {"command": "python look.py"}], ids=["host", "command"])
def test_no_secret_of_ours_reaches_user_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """0 of 4 canaries, neither in the agent nor in the grader; what is named in the settings is there."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUDGE_KEY", "for the grader")
    (tmp_path / "look.py").write_text(LOOK)
    agent = AgentConfig(cwd=str(tmp_path), hosts=1, env={"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}, **how)
    seen = tmp_path / "seen.json"
    reward = RewardConfig(grader="look.py:grade", env={"SEEN": str(seen)}, pass_env=("JUDGE_KEY",))
    with Rig() as rig:
        rig.start_gateways()
        rig.start_runner(agent, reward, tmp_path)
        rollout = rig.request(input="look", expected=EXPECTED)
        rig.final(rollout)
        assert rig.rewards(rollout)["reward"].value == 1.0
    told = json.loads(seen.read_text())
    text = json.dumps(told)
    assert [name for name, value in CANARIES.items() if name in text or value in text] == []
    assert EXPECTED not in json.dumps(told["agent"])
    assert "JUDGE_KEY" in told["grader"][0] and "JUDGE_KEY" not in told["agent"]
    assert "OPENAI_API_KEY" in told["agent"] and "OPENAI_API_KEY" not in told["grader"][0]


@pytest.mark.e2e
@pytest.mark.parametrize("how", [{"callable": "look.py:solve"}, {"command": "python look.py"}], ids=["host", "command"])
def test_neither_the_runs_key_nor_its_broker_reaches_user_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """Not in what it is started with, not in what it is sent, and no connection of ours is open in it."""
    told: list[bytes] = []
    write = asyncio.StreamWriter.write

    def overhear(writer: asyncio.StreamWriter, data: bytes) -> None:
        told.append(data)
        write(writer, data)

    (tmp_path / "look.py").write_text(LOOK)
    agent = AgentConfig(cwd=str(tmp_path), hosts=1, env={"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}, **how)
    reward = RewardConfig(grader="look.py:grade", env={"SEEN": str(tmp_path / "seen.json")})
    with (
        Rig() as rig,
        socket.create_server(("127.0.0.1", 0)) as broker,
        socket.create_connection(broker.getsockname()) as connection,
    ):
        # As if a library had left it so.
        connection.set_inheritable(True)
        address = "{}:{}".format(*broker.getsockname())
        monkeypatch.setenv("TRACEGRAD_KAFKA_BOOTSTRAP_SERVERS", address)
        rig.start_gateways()
        monkeypatch.setattr(asyncio.StreamWriter, "write", overhear)
        rig.start_runner(agent, reward, tmp_path)
        rig.final(rig.request(input="look", expected=EXPECTED))
        opened = os.readlink(f"/proc/self/fd/{connection.fileno()}")
    text = (tmp_path / "seen.json").read_text() + b"".join(told).decode()
    assert EXPECTED in text, "expected to overhear what the grader is sent"
    secrets = {"key in hex": KEY.hex(), "key in base64": base64.b64encode(KEY).decode(), "key": json.dumps(list(KEY))}
    secrets |= {"broker": address, "connection": opened}
    assert [name for name, value in secrets.items() if value in text] == []


def test_the_environment_is_a_list_of_what_is_let_through() -> None:
    """Whatever a secret is called, it is not on it; the settings add names and values."""
    environ = {**CANARIES, "PATH": "/bin", "LC_ALL": "C", "OPENAI_API_KEY": "mine", "https_proxy": "http://me:pw@proxy"}
    assert inherited(environ) == {"PATH": "/bin", "LC_ALL": "C"}
    assert inherited(environ, ("HF_TOKEN",)) == {"PATH": "/bin", "LC_ALL": "C", "HF_TOKEN": "canary-hf"}
    reward = RewardConfig(grader="grade.py:grade", env={"LC_ALL": "de"}, pass_env=("SOMETHING_ELSE", "ABSENT"))
    assert grader_environment(reward, environ) == {"PATH": "/bin", "LC_ALL": "de", "SOMETHING_ELSE": "canary-else"}


LLM_TOKEN, OTLP_TOKEN = "for the llm", "for=the otlp,100%"
AGENT = """
from asking import ask
from opentelemetry import trace

def solve(task):
    with trace.get_tracer("t").start_as_current_span("solve"):
        return ask("hi")

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
