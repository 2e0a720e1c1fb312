"""What an agent does to get out of a bad grade: none of it is tried again or left out, and the grader is always asked.

Each agent asks for an answer first: before it there is nothing to run away from.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.producers.runner.rig import Rig
from tests.serving import until
from tracegrad.producers.runner import hosts
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.records.rollouts import RolloutState

pytestmark = pytest.mark.e2e
"""Real processes."""

SUCCEEDED, FAILED, TRUNCATED = RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.TRUNCATED
NOTHING, SOMETHING = 0.25, 1.0
"""What the grader gives for no output and for any."""
AGENT = """
import asyncio, ctypes, glob, os, re, signal, subprocess, sys, threading, time
from asking import ask

def blame():
    error = OSError("the gateway did it")
    error.url, error.status = os.environ["OPENAI_BASE_URL"], 503
    raise error

def die(error):
    raise error

def write_everywhere():
    for fd in range(3, 1100):
        try:
            os.write(fd, b'{"op": "result", "episode": "' + bytes(range(256)))
        except OSError:
            pass

def close_prints():
    sys.stdout.close()
    sys.__stdout__.close()
    os.close(1)
    os.close(2)

def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value

def end_others():
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        pid = int(path.split("/")[2])
        try:
            is_ours = os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
            if is_ours and pid != os.getpid() and b"agent_host.py" in open(path, "rb").read():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

open(f"host-{os.getpid()}", "w").close()
DODGES = {
    "exit": lambda task: os._exit(0),
    "abort": lambda task: os.abort(),
    "kill": lambda task: os.kill(os.getpid(), signal.SIGKILL),
    "killed": lambda task: subprocess.run(["kill", "-9", str(os.getpid())]),
    "segfault": lambda task: ctypes.string_at(0),
    "exec": lambda task: os.execv("/bin/true", ["true"]),
    "thread": lambda task: (threading.Thread(target=os._exit, args=(1,)).start(), time.sleep(9)),
    "close": lambda task: (os.closerange(3, 4096), time.sleep(0.1)),
    "interrupt": lambda task: signal.raise_signal(signal.SIGINT),
    "hog": lambda task: re.match("(a+)+$", "a" * 40 + "b"),
    "hang": lambda task: time.sleep(60),
    "leave": lambda task: sys.exit(0),
    "ctrl-c": lambda task: die(KeyboardInterrupt()),
    "blame": lambda task: blame(),
    "unhashable": lambda task: ask("", messages=[{"role": "tool", "tool_call_id": [], "content": {}}], model={}),
    "object": lambda task: object(),
    "nan": lambda task: float("nan"),
    "deep": lambda task: deep(900),
    "print": lambda task: print('{"op": "result", "state": "aborted"}', flush=True) or os.write(1, b"half a line"),
    "write": lambda task: write_everywhere(),
    "close prints": lambda task: close_prints(),
    "end others": lambda task: end_others(),
    "go": lambda task: print("a neighbour's print"),
}

def solve(task):
    what, _, told = task["input"].partition("|")
    ask(task["input"])
    if told:
        wait_for(told)
    return DODGES[what](task) or "the answer"
"""
ASYNC_AGENT = """
import asyncio, os, sys, time
from asking import ask

async def exits():
    sys.exit(0)

async def solve(task):
    await asyncio.to_thread(ask, task["input"])
    what = task["input"]
    if what == "leave":
        await asyncio.create_task(exits())
    if what == "leave behind":
        asyncio.create_task(exits())
        await asyncio.sleep(0.1)
    if what == "stop":
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.1)
    if what == "block":
        time.sleep(60)
    if what == "exit":
        os._exit(0)
    if what == "tool":
        await asyncio.sleep(1.5)
    return "the answer"
"""
GRADE = """
def grade(task, output, attempt):
    assert attempt["state"] in ("succeeded", "failed", "truncated")
    return 0.25 if output is None else 1.0
"""


def start(folder: Path, rig: Rig, callable_: str, **more: Any) -> None:
    """Gateways and a runner; hosts that import no instrumentation start in half a second."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "async_agent.py").write_text(ASYNC_AGENT)
    (folder / "grade.py").write_text(GRADE)
    rig.start_gateways()
    env = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}
    agent = AgentConfig(callable=callable_, cwd=str(folder), env=env, **{"hosts": 1, **more})
    rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), folder)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One host, whose rollouts are threads."""
    with Rig() as rig:
        start(tmp_path_factory.mktemp("agent"), rig, "agent.py:solve")
        yield rig


@pytest.fixture(scope="module")
def async_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One host, whose rollouts share an event loop."""
    with Rig() as rig:
        start(tmp_path_factory.mktemp("agent"), rig, "async_agent.py:solve")
        yield rig


def check(rig: Rig, rollout: str, state: RolloutState) -> None:
    """One attempt, which is not aborted, and the grader's word."""
    rig.final(rollout)
    assert [event.state for event in rig.events(rollout)] == [RolloutState.STARTED, state]
    reward = rig.rewards(rollout)["reward"]
    assert (reward.value, reward.reason) == (SOMETHING if state is SUCCEEDED else NOTHING, "")


@pytest.mark.parametrize(
    ("dodge", "state"),
    [
        *((dodge, FAILED) for dodge in ("exit", "abort", "kill", "killed", "segfault", "exec", "thread", "close")),
        *((dodge, FAILED) for dodge in ("leave", "ctrl-c", "blame", "unhashable", "object", "nan", "deep")),
        *((dodge, TRUNCATED) for dodge in ("hang", "hog")),
        *((dodge, SUCCEEDED) for dodge in ("interrupt", "print", "write", "close prints", "end others")),
    ],
)
def test_an_agent_cannot_dodge_its_grade(
    rig: Rig, dodge: str, state: RolloutState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending its process in any way, breaking its streams, blaming the gateway, an answer that nobody can take."""
    monkeypatch.setattr(hosts, "_HANG_GRACE_S", 1.0)
    check(rig, rig.request(input=dodge, time_s=1.0 if state is TRUNCATED else 20.0), state)


@pytest.mark.parametrize(
    ("dodge", "state"),
    [("leave", FAILED), ("exit", FAILED), ("block", TRUNCATED), ("leave behind", SUCCEEDED), ("stop", SUCCEEDED)],
)
def test_neither_in_an_event_loop_that_others_share(async_rig: Rig, dodge: str, state: RolloutState) -> None:
    """A neighbour in a tool meanwhile is no worse off: at most it runs again."""
    neighbour = async_rig.request(input="tool")
    until(lambda: async_rig.calls(neighbour))
    check(async_rig, async_rig.request(input=dodge, time_s=1.0 if state is TRUNCATED else 20.0), state)
    assert async_rig.final(neighbour).state is SUCCEEDED
    if state is SUCCEEDED:
        assert async_rig.states(neighbour) == [RolloutState.STARTED, SUCCEEDED]


@pytest.mark.parametrize(
    ("dodge", "state", "num_hosts"),
    [("killed", FAILED, 1), ("close", FAILED, 1), ("hog", TRUNCATED, 1), ("end others", SUCCEEDED, 2)],
)
def test_who_waits_for_an_answer_when_its_host_ends_runs_again(
    tmp_path: Path, dodge: str, state: RolloutState, num_hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway says that it waited; who ended the host, nobody does."""
    monkeypatch.setattr(hosts, "_HANG_GRACE_S", 1.0)
    with Rig() as rig:
        start(tmp_path, rig, "agent.py:solve", hosts=num_hosts)
        culprit = rig.request(input=f"{dodge}|{tmp_path / 'now'}", time_s=6.0 if state is TRUNCATED else 20.0)
        until(lambda: rig.calls(culprit) and len(list(tmp_path.glob("host-*"))) == num_hosts)
        rig.engine.delay_s = 15.0
        time.sleep(0.5)  # the last host is ready
        neighbour = rig.request(input="go")
        until(lambda: rig.states(neighbour))
        time.sleep(0.5)  # its call is on its way
        (tmp_path / "now").touch()
        check(rig, culprit, state)
        rig.engine.delay_s = 0.0
        assert rig.final(neighbour).state is SUCCEEDED
        assert rig.states(neighbour)[:2] == [RolloutState.STARTED, RolloutState.ABORTED]
        aborted = next(event for event in rig.events(neighbour) if event.state is RolloutState.ABORTED)
        assert "while it waited for an answer" in (aborted.error or "")
