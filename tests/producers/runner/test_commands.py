"""Agents as commands: one process per rollout, told who it is by its environment, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.producers.keys import HOST, KEY, RUN_HASH
from tests.producers.runner.rig import Rig
from tests.serving import until
from tests.versions import label
from tracegrad.producers.runner.agent_environment import command_environment, host_environment
from tracegrad.producers.runner.commands import check_command
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.producers.runner.reaper import leftovers
from tracegrad.schemas.credentials import attempt_holder, proved_holder
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.calls import CallRecord, CallsClosed
from tracegrad.schemas.records.rollouts import RolloutState

SCRIPT = """
read -r task
case "$task" in
  *hang*) sleep 61 & echo $! > child.pid; wait ;;
  *flood*) head -c 20000000 /dev/zero | tr '\\\\0' x; echo; echo last ;;
  *fail*) echo '{"reward": 1}'; exit 3 ;;
  *temporary*) exit 75 ;;
  *kill*) kill -9 $$ ;;
  *close*) exec >&- 2>&-; exit 0 ;;
  *) curl -s -f -o /dev/null "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" \\
       -H "traceparent: $TRACEPARENT" -H "baggage: $BAGGAGE" -H 'content-type: application/json' \\
       -d '{"model":"policy","messages":[{"role":"user","content":"hello"}]}'
     status=$?; echo "curl $status"; echo; exit $status ;;
esac
"""

HANDLES = RunnerHandles(
    run_hash=RUN_HASH, key=KEY, llm_url="http://gw:1/", otlp_endpoint="http://otlp:2/", log_dir="/logs"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command and a grader."""
    folder = tmp_path_factory.mktemp("command")
    (folder / "agent.sh").write_text(SCRIPT)
    (folder / "grade.py").write_text("def grade(task, output, attempt): return {'len': len(output or '')}")
    return folder


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    """Gateways and a runner of the command."""
    with Rig() as rig:
        rig.start_gateways()
        agent = AgentConfig(command=("sh", "agent.sh"), cwd=str(folder))
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), folder)
        yield rig


@pytest.mark.e2e
def test_a_command_answers_by_its_last_line(rig: Rig) -> None:
    """Its calls carry its identity five ways, which agree; spans are not counted."""
    rollout = rig.request(input="go")
    event = rig.final(rollout)
    assert (event.state, event.spans_exported, event.spans_marked) == (RolloutState.SUCCEEDED, None, False)
    assert [type(call) for call in rig.calls(rollout)] == [CallRecord, CallsClosed]
    assert rig.rewards(rollout)["len"].value == len("curl 0")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("what", "state", "length"),
    [
        ("fail", RolloutState.FAILED, 0),
        ("temporary", RolloutState.FAILED, 0),
        ("kill", RolloutState.FAILED, 0),
        ("close", RolloutState.SUCCEEDED, 0),
        ("flood", RolloutState.SUCCEEDED, len("last")),
    ],
)
def test_exit_status_and_floods(rig: Rig, what: str, state: RolloutState, length: int) -> None:
    """A status other than 0 is the agent's failure, also one that means that it was not to blame; its prints are no
    reward; 20 MB of output cost a bounded memory. Nothing of it is tried again."""
    rollout = rig.request(input=what)
    rig.final(rollout)
    assert rig.states(rollout) == [RolloutState.STARTED, state]
    assert rig.rewards(rollout)["len"].value == length


@pytest.mark.e2e
def test_a_command_that_ends_by_an_engine_fault_is_tried_again(rig: Rig) -> None:
    """Its status says failure, its last call was answered 503: aborted, not graded, and made again."""
    rig.engine.label = "default"
    try:
        rollout = rig.request(input="curl")
        until(lambda: RolloutState.ABORTED in rig.states(rollout))
    finally:
        rig.engine.label = label(0)
    aborted = next(event for event in rig.events(rollout) if event.state is RolloutState.ABORTED)
    assert aborted.error == "its last call was answered 503 (exit status 22)" and aborted.calls_closed
    assert rig.final(rollout).state is RolloutState.SUCCEEDED


@pytest.mark.e2e
def test_a_time_limit_kills_the_whole_process_group(rig: Rig, folder: Path) -> None:
    """Children of the command too."""
    rollout = rig.request(input="hang", time_s=0.3)
    assert rig.final(rollout).state is RolloutState.TRUNCATED
    child = int((folder / "child.pid").read_text())
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_the_environment_names_the_rollout_in_every_way() -> None:
    """URL, key, resource attributes, traceparent, baggage; the user's own resource attributes stay."""
    agent, rollout = AgentConfig(command=("x",)), "ab12cd34" + "0" * 20
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "team=a"}
    env = command_environment(agent, HANDLES, environ, rollout=rollout, attempt="0a0b", span="f" * 16)
    assert env["OPENAI_BASE_URL"] == f"http://gw:1/rollout/{rollout}/attempt/0a0b/v1"
    assert env["ANTHROPIC_BASE_URL"] == f"http://gw:1/rollout/{rollout}/attempt/0a0b"
    assert env["ANTHROPIC_API_KEY"] == env["OPENAI_API_KEY"]
    holder = attempt_holder(rollout, "0a0b")
    assert proved_holder(KEY, env["OPENAI_API_KEY"]) == holder == f"rt-{rollout}.0a0b"
    assert env["OTEL_EXPORTER_OTLP_HEADERS"] == f"x-api-key={env['OPENAI_API_KEY']}"
    assert env["OTEL_RESOURCE_ATTRIBUTES"] == f"team=a,rollout.id={rollout},attempt.id=0a0b"
    assert env["TRACEPARENT"] == f"00-{rollout}0a0b-{'f' * 16}-01"
    assert env["BAGGAGE"] == f"rollout.id={rollout},attempt.id=0a0b"
    assert env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otlp:2"


def test_only_a_host_is_told_an_export_time_out() -> None:
    """It is Python, where the variable is in seconds; to the SDKs of other languages 10 is 10 ms."""
    agent = AgentConfig(command=("x",), flush_timeout_s=12.5)
    command = command_environment(agent, HANDLES, {}, rollout="ab12cd34" + "0" * 20, attempt="0a0b", span="f" * 16)
    host = host_environment(agent, HANDLES, {}, holder=HOST)
    assert host["OTEL_EXPORTER_OTLP_TIMEOUT"] == "12.5"
    assert "OTEL_EXPORTER_OTLP_TIMEOUT" not in command
    assert {name for name, value in host.items() if command.get(name) != value} == {
        "OTEL_EXPORTER_OTLP_TIMEOUT",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL",
    }


@pytest.mark.parametrize("own", [{"env": {"ANTHROPIC_API_KEY": "mine"}}, {"pass_env": ("ANTHROPIC_API_KEY",)}])
def test_an_agents_own_anthropic_account_is_left_to_it(own: dict[str, Any]) -> None:
    """Neither the key nor where it is sent is the gateway's then."""
    agent, rollout = AgentConfig(command=("x",), **own), "ab12cd34" + "0" * 20
    environ = {"ANTHROPIC_API_KEY": "mine"}
    for env in (
        command_environment(agent, HANDLES, environ, rollout=rollout, attempt="0a0b", span="f" * 16),
        host_environment(agent, HANDLES, environ, holder=HOST),
    ):
        assert env["ANTHROPIC_API_KEY"] == "mine" and "ANTHROPIC_BASE_URL" not in env


@pytest.mark.parametrize(
    ("command", "program"),
    [(("no-such-program",), "no-such-program"), ("./none.sh --fast", "./none.sh"), ((), ""), ("", "")],
)
def test_a_command_that_cannot_work_is_refused_at_start(command: str | tuple[str, ...], program: str) -> None:
    """By its program's name."""
    with pytest.raises(ConfigurationError, match=f"cannot be executed: '{program}'"):
        check_command(AgentConfig(command=command))


def test_the_reaper_kills_what_was_not_removed() -> None:
    """Groups that ended are not touched, for their number may be another's by then."""
    assert leftovers(["+10\n", "+11\n", "-10\n", "garbage\n", "+x\n"]) == {11}


@pytest.mark.e2e
def test_nothing_outlives_the_rig() -> None:
    """After this module's other tests, no command runs as a child of ours."""
    names = [" ".join(child.cmdline()) for child in psutil.Process(os.getpid()).children(recursive=True)]
    assert not [name for name in names if "sleep 61" in name]
