"""Agents in bubblewrap: what they must not see is not there, and all that they need is."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.producers.runner.rig import Rig
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.producers.runner.sandbox import Sandbox, options
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.rollouts import RolloutState

SECRET = "a-secret-of-the-run"
LOOK = """
import glob, json, os, socket, sys, tempfile, urllib.request

def read(path):
    try:
        return open(path).read()
    except (OSError, ValueError):
        return ""

def read_all(top):
    return "".join(read(os.path.join(folder, name)) for folder, _, names in os.walk(top) for name in names)

def ask():
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    try:
        from opentelemetry import propagate, trace
        trace.get_tracer("t").start_span("look").end()
        propagate.inject(headers)
    except ImportError:
        pass
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.status

def tries(act):
    try:
        act()
        return "done"
    except OSError as error:
        return type(error).__name__

def solve(task):
    top = os.path.dirname(os.getcwd())
    return json.dumps({
        "read": read_all(top),
        "known": open("words.txt").read(),
        "environs": "".join(map(read, glob.glob("/proc/[0-9]*/environ"))),
        "write": tries(lambda: open("look.py", "a")),
        "scratch": tries(lambda: open(os.path.join(tempfile.gettempdir(), "x"), "w").write("x")),
        "home": os.listdir(os.environ["HOME"]),
        "kill": tries(lambda: os.kill(int(open("runner.pid").read()), 0)),
        "broker": tries(lambda: socket.create_connection(("127.0.0.1", int(read("broker.port"))), timeout=2)),
        "status": ask(),
    })

if __name__ == "__main__":
    print(solve(json.loads(sys.stdin.read())))
"""
GRADE = """
def grade(task, output, attempt):
    open(task["expected"], "w").write(output or str(attempt))
    return 1.0
"""


@cache
def why_not() -> str:
    """Why no sandbox can be made here; empty when one can."""
    program = shutil.which("bwrap")
    if program is None:
        return "there is no bwrap; apt install bubblewrap"
    done = subprocess.run(
        [program, "--unshare-user-try", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"bwrap may not make a sandbox here: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture
def bwrap() -> None:
    """Skips where the platform allows none."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as users have them: agent, grader, tasks and runs side by side, secrets in the home folder."""
    folder = tmp_path / "project"
    for name, text in {
        "project/look.py": LOOK,
        "project/grade.py": GRADE,
        "project/words.txt": "hello",
        "project/tasks.jsonl": json.dumps({"id": "1", "input": "look", "expected": SECRET}),
        "project/runs/mine/key.json": SECRET,
        "project/runs/mine/trainer/weights/v1/model.safetensors": SECRET,
        "project/runs/other/key.json": SECRET,
        "elsewhere/notes": SECRET,
        "home/.aws/credentials": SECRET,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "link.jsonl").symlink_to("tasks.jsonl")
    (folder / "runner.pid").write_text(str(os.getpid()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CANARY", SECRET)
    return folder


def look(project: Path, **more: Any) -> dict[str, Any]:
    """What an agent of that project saw and could do."""
    seen = project.parent / "seen.json"
    agent = AgentConfig(
        cwd=str(project), hosts=1, env={"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}, time_limit_s=60, **more
    )
    hidden = (str(project / "runs"), str(project / "tasks.jsonl"))
    with Rig() as rig, socket.create_server(("127.0.0.1", 0)) as broker:
        (project / "broker.port").write_text(str(broker.getsockname()[1]))
        rig.start_gateways()
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), project.parent, hidden=hidden)
        rollout = rig.request(input="look", expected=str(seen), time_s=60.0)
        event = rig.final(rollout)
        assert event.state is RolloutState.SUCCEEDED, seen.read_text()
        assert (event.spans_exported, event.spans_lost) == ((1, 0) if "callable" in more else (None, 0))
    found: dict[str, Any] = json.loads(seen.read_text())
    return found


HOW = pytest.mark.parametrize(
    "how", [{"callable": "look.py:solve"}, {"command": (sys.executable, "look.py")}], ids=["host", "command"]
)


@pytest.mark.e2e
@HOW
def test_an_agent_in_a_sandbox_sees_nothing_of_ours(project: Path, bwrap: None, how: dict[str, Any]) -> None:
    """No task's answer, key, weights, home or process of ours; its own files, scratch and the gateway it has."""
    found = look(project, sandbox="bubblewrap", **how)
    assert SECRET not in json.dumps(found)
    assert found["known"] == "hello" and found["status"] == 200
    assert found["home"] == [] and found["broker"] == "ConnectionRefusedError"
    assert (found["write"], found["scratch"], found["kill"]) == ("OSError", "done", "ProcessLookupError")


@pytest.mark.e2e
def test_without_one_it_sees_all_that_its_user_can(project: Path) -> None:
    """So that the test above looks where something is."""
    found = look(project, callable="look.py:solve")
    assert found["read"].count(SECRET) >= 6 and SECRET in found["environs"]
    assert (found["write"], found["kill"], found["broker"]) == ("done", "done", "done")


@pytest.mark.e2e
def test_a_sandbox_may_have_the_network(project: Path, bwrap: None) -> None:
    """For agents whose tools are elsewhere; the rest is as hidden."""
    found = look(project, sandbox="bubblewrap", sandbox_network="host", callable="look.py:solve")
    assert SECRET not in json.dumps(found) and found["status"] == 200 and found["broker"] == "done"


def test_a_hidden_folder_does_not_take_what_is_named(tmp_path: Path) -> None:
    """What lies in it is hidden by its own name; a link is followed; what is not there costs nothing."""
    (tmp_path / "a" / "agent").mkdir(parents=True)
    (tmp_path / "a" / "agent" / "tasks").touch()
    (tmp_path / "link").symlink_to("a/agent")
    top = str(tmp_path / "a")
    made = options([f"{top}/agent"], [top, f"{tmp_path}/link/tasks", f"{top}/none"], home="/home/me")
    assert made == [
        *("--tmpfs", "/tmp", "--tmpfs", "/home/me", "--ro-bind", f"{top}/agent", f"{top}/agent"),
        *("--ro-bind", "/dev/null", f"{top}/agent/tasks"),
    ]


def test_what_is_missing_is_said_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program; a program that may not; a folder that holds the home folder."""
    agent = AgentConfig(callable="agent.py:solve", cwd=str(tmp_path), sandbox="bubblewrap")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="expected the program bwrap on PATH, found none; install it"):
        Sandbox(agent, ())
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"No permissions to create a new namespace; allow user namespaces"):
        Sandbox(agent, ())
    (tmp_path / "bwrap").write_text('#!/bin/sh\ncase "$*" in *command*) exit 1;; esac\n')
    with pytest.raises(ConfigurationError, match="expected the program 'agent' inside, found none; name its folder"):
        Sandbox(AgentConfig(command="agent", cwd=str(tmp_path), sandbox="bubblewrap"), ())
    with pytest.raises(ConfigurationError, match=r'got http://10\.0\.0\.1:1; .*= "host"'):
        Sandbox(agent, (), ["http://10.0.0.1:1"])
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    with pytest.raises(ConfigurationError, match="holds the home folder"):
        Sandbox(agent, ())
