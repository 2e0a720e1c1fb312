"""The runner on real gateways, real hosts and graders: what becomes of good and of every kind of bad agent."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.producers.runner.rig import TOPICS, Rig
from tests.serving import until
from tests.versions import label
from tracegrad.producers.rollout_histories import event_of
from tracegrad.producers.runner import children
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.metrics import ATTEMPTS_BEGUN, DEAD_LETTERS, OUTCOMES
from tracegrad.schemas.reasons import row_of
from tracegrad.schemas.records.calls import CallRecord, CallsClosed
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, ROLLOUTS, RolloutState
from tracegrad.schemas.topics import Stage, Topic

pytestmark = pytest.mark.e2e
"""Real processes: half a minute together."""

AGENT = """
import asyncio, json, os, sys, time
from asking import ask

def solve(task):
    from opentelemetry import trace
    what = task["input"].split()[0]
    print('{"op": "result", "garbage": true}')
    sys.stdout.write("reward: 1.0\\n")
    os.write(1, b"to the descriptor\\n")
    assert "expected" not in task
    if what == "hang":
        time.sleep(60)
    if what == "exit":
        os._exit(3)
    if what == "leave":
        sys.exit("done")
    if what == "object":
        return object()
    if what == "surrogate":
        error = ValueError("\\udcff" + "x" * 5000)
        error.url = "http://[\\ud83d" + "x" * 9_000_000
        raise error
    if what == "halves":
        return {"\\ud83d": ["\\udcff", "\\U0001f642"]}
    if what == "deep":
        output = []
        for _ in range(900):
            output = [output]
        return output
    if what == "giant":
        return "x" * 1_000_000
    if what == "slow":
        time.sleep(1.0)
    with trace.get_tracer("t").start_as_current_span("solve"):
        answer = ask(task["input"])
        if what == "raise":
            raise KeyError("no such tool")
        return answer
"""
GRADE = """
import os, time

def grade(task, output, attempt):
    print("noise")
    how = task["input"].split()[-1]
    if how == "raises":
        raise ValueError("cannot judge")
    if how == "none":
        return None
    if how == "nan":
        return float("nan")
    if how == "halves":
        raise ValueError("cannot read \\ud83d")
    if how == "names":
        return {"good": 1, "bad\\ud83d": 0.5}
    if how == "long":
        return {"x" * 201: 1}
    if how == "seen":
        assert output == {"?": ["?", "\\U0001f642"]}, output
        return 1
    if how == "dict":
        return {"correct": 1, "format": 0.5}
    if how == "dies":
        os._exit(1)
    if how == "hangs":
        time.sleep(60)
    assert attempt["state"] in ("succeeded", "failed", "truncated")
    return float(output is not None and len(attempt["calls"]) == 1 and task["expected"] == "yes")
"""
PLAIN = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}
"""Hosts that import no instrumentation start in half a second."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's agent and grader."""
    folder = tmp_path_factory.mktemp("agent")
    (folder / "agent.py").write_text(AGENT)
    (folder / "grade.py").write_text(GRADE)
    return folder


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    """Gateways, and one runner of the agent for all tests of this module."""
    with Rig() as rig:
        rig.start_gateways()
        agent = AgentConfig(callable="agent.py:solve", cwd=str(folder), env=PLAIN, hosts=1)
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade", time_limit_s=0.5), folder)
        yield rig


def test_a_rollout_runs_is_graded_and_committed(rig: Rig) -> None:
    """started, succeeded; its call, its reward, its spans; the request's offset is done."""
    rollout = rig.request(input="go", expected="yes")
    event = rig.final(rollout)
    assert rig.states(rollout) == [RolloutState.STARTED, RolloutState.SUCCEEDED]
    assert (event.spans_exported, event.spans_lost, event.spans_marked, event.calls_closed) == (1, 0, True, True)
    call, closed = rig.calls(rollout)
    assert isinstance(call, CallRecord) and isinstance(closed, CallsClosed)
    assert json.loads(event.output or "null") == call.content != "yes"
    assert (call.attempt_id, list(closed.outcomes)) == (event.attempt_id, [call.call_id])
    [span] = [s for service, s in rig.spans() if s.trace_id.hex() == rollout + event.attempt_id and service == "agent"]
    assert call.parent_span_id == span.span_id.hex()
    reward = rig.rewards(rollout)["reward"]
    assert (reward.value, reward.source, reward.attempt_id) == (1.0, "grader:grade", event.attempt_id)
    end = {p: kept.end for p, kept in rig.log.offsets(TOPICS.name(Topic.ROLLOUTS)).items() if kept.end}
    until(lambda: rig.log.committed(TOPICS.group(Stage.RUNNER), TOPICS.name(Topic.ROLLOUTS)) == end)


def test_attempts_are_counted_by_how_they_end(rig: Rig) -> None:
    """As `tracegrad status` shows them; what the log has acknowledged counts."""

    def counts() -> tuple[float, float]:
        return rig.metrics.value(ATTEMPTS_BEGUN), rig.metrics.value(OUTCOMES, "succeeded")

    begun, succeeded = counts()
    rig.final(rig.request(input="go"))
    until(lambda: counts() == (begun + 1, succeeded + 1))


def test_many_rollouts_run_at_once_each_with_its_own_calls(rig: Rig) -> None:
    """Eight attempts in one process: no call or span in another's episode."""
    rollouts = [rig.request(input=f"go {index}") for index in range(8)]
    for rollout in rollouts:
        event = rig.final(rollout)
        assert [type(call) for call in rig.calls(rollout)] == [CallRecord, CallsClosed]
        assert event.spans_exported == 1


@pytest.mark.parametrize(
    ("what", "state", "error"),
    [
        ("raise", RolloutState.FAILED, "KeyError"),
        ("leave", RolloutState.FAILED, "SystemExit"),
        ("object", RolloutState.FAILED, "TypeError"),
        ("surrogate", RolloutState.FAILED, "agent raised ValueError at agent.py:23: ?x"),
        ("giant", RolloutState.FAILED, "at most 1000000 bytes"),
        ("deep", RolloutState.FAILED, "at most 100 levels"),
    ],
)
def test_the_agents_own_errors_are_failed_and_graded(rig: Rig, what: str, state: RolloutState, error: str) -> None:
    """An exception, a sys.exit, an output that is no JSON, half a surrogate pair, outputs without measure."""
    rollout = rig.request(input=what)
    event = rig.final(rollout)
    assert event.state is state and error in (event.error or "")
    assert rig.rewards(rollout)["reward"].value == 0.0


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", ": cannot judge"),
        ("none", "grader returned None"),
        ("nan", "finite"),
        ("halves", ": cannot read ?"),
        ("long", "short names"),
        ("dies", "grader process died"),
        ("hangs", "more than 0.5 s"),
    ],
)
def test_a_grader_without_a_score_leaves_the_rollout_unscored(rig: Rig, how: str, reason: str) -> None:
    """value None and the reason, never 0; the next attempt is graded again."""
    rollout = rig.request(input=f"go {how}")
    assert rig.final(rollout).state is RolloutState.SUCCEEDED
    reward = rig.rewards(rollout)["reward"]
    assert reward.value is None and reward.reason and reason in reward.reason


def test_named_rewards_replace_the_default_one(rig: Rig) -> None:
    """The event awaits what was written, so that nobody waits for `reward`."""
    rollout = rig.request(input="go dict")
    event = rig.final(rollout)
    assert {name: reward.value for name, reward in rig.rewards(rollout).items()} == {"correct": 1.0, "format": 0.5}
    assert event.rewards_awaited == ("correct", "format")


def test_half_a_surrogate_pair_becomes_a_question_mark(rig: Rig) -> None:
    """In outputs, keys and names of rewards: Python and JSON can say it, UTF-8 cannot."""
    seen, named = rig.request(input="halves seen"), rig.request(input="go names")
    rig.final(seen)
    assert rig.rewards(seen)["reward"].value == 1.0
    assert rig.final(named).rewards_awaited == ("bad?", "good")
    assert rig.rewards(named)["bad?"].value == 0.5


def test_an_outcome_that_no_record_can_hold_fails_its_attempt_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should text slip through uncleaned: failed and unscored with the reason; the runner lives."""
    monkeypatch.setattr(children, "decode_json", json.loads)
    broken = rig.request(input="go names")
    event = rig.final(broken)
    assert event.state is RolloutState.FAILED
    assert event.error == "its outcome cannot be recorded: UnicodeEncodeError"
    assert {name: reward.value for name, reward in rig.rewards(broken).items()} == {"good": None}
    assert rig.final(rig.request(input="go")).state is RolloutState.SUCCEEDED


def test_a_hung_agent_is_truncated_and_its_neighbour_finishes(rig: Rig) -> None:
    """The time limit ends the attempt; its host takes no more and is replaced."""
    hung = rig.request(input="hang", time_s=0.4)
    neighbour = rig.request(input="slow")
    event = rig.final(hung)
    assert (event.state, event.error) == (RolloutState.TRUNCATED, "time limit; it does not end")
    assert rig.rewards(hung)["reward"].value == 0.0
    assert rig.final(neighbour).state is RolloutState.SUCCEEDED
    assert rig.states(neighbour) == [RolloutState.STARTED, RolloutState.SUCCEEDED]
    assert rig.final(rig.request(input="go")).state is RolloutState.SUCCEEDED


def test_an_agent_that_crashes_its_host_fails_alone(rig: Rig) -> None:
    """The neighbour is aborted and runs again; the culprit does not, as its host could see who ends it."""
    neighbour = rig.request(input="slow")
    until(lambda: RolloutState.STARTED in rig.states(neighbour))
    culprit = rig.request(input="exit")
    event = rig.final(culprit)
    assert (event.state, event.attempt_number) == (RolloutState.FAILED, 0)
    assert event.error == "the agent ends its process: its host died (exit status 3)"
    assert rig.rewards(culprit)["reward"].value == 0.0
    assert rig.final(neighbour).state is RolloutState.SUCCEEDED
    assert rig.states(neighbour)[:2] == [RolloutState.STARTED, RolloutState.ABORTED]


def test_a_killed_host_loses_nothing(rig: Rig) -> None:
    """SIGKILL from outside, before it asked for anything: it is aborted and made again elsewhere."""
    rollout = rig.request(input="slow")
    until(lambda: RolloutState.STARTED in rig.states(rollout))
    hosts = [p for p in psutil.Process().children() if any("agent_host.py" in part for part in p.cmdline())]
    for host in hosts:
        os.kill(host.pid, signal.SIGKILL)
    event = rig.final(rollout)
    assert (event.state, event.attempt_number) == (RolloutState.SUCCEEDED, 1)


def test_an_engine_fault_is_aborted_and_retried(rig: Rig) -> None:
    """The gateway gives up on the engine with 503; the agent ends by it; the next attempt succeeds."""
    rig.engine.label = "default"
    try:
        rollout = rig.request(input="go")
        until(lambda: RolloutState.ABORTED in rig.states(rollout))
    finally:
        rig.engine.label = label(0)
    assert rig.final(rollout).state is RolloutState.SUCCEEDED


def test_attempts_left_open_by_a_dead_runner_are_made_again(rig: Rig) -> None:
    """`started` without an end: aborted with its reason, then the next attempt."""
    request = rig.prepare(input="go", max_attempts=2)
    started = event_of(request, "dead", 0, RolloutState.STARTED)
    rig.append(Topic.ROLLOUT_EVENTS, request.rollout_id, ROLLOUT_EVENTS.encode(started))
    rig.append(Topic.ROLLOUTS, request.rollout_id, ROLLOUTS.encode(request))
    event = rig.final(request.rollout_id)
    assert (event.state, event.attempt_number) == (RolloutState.SUCCEEDED, 1)
    aborted = next(event for event in rig.events(request.rollout_id) if event.attempt_id == "dead" and event.error)
    assert (aborted.state, aborted.error) == (RolloutState.ABORTED, "its runner stopped")
    events = rig.events(request.rollout_id)
    begun = sorted(event.attempt_id for event in events if event.state is RolloutState.STARTED)
    assert begun == sorted(event.attempt_id for event in events if event.state.is_end)
    assert (aborted.calls_closed, aborted.is_final) == (False, False)


def test_a_rollout_that_has_a_final_event_is_not_run_again(rig: Rig) -> None:
    """A request that comes again after a restart is done at once."""
    rollout = rig.request(input="go")
    rig.final(rollout)
    again = next(v for v in rig.values(Topic.ROLLOUTS) if ROLLOUTS.decode(v).rollout_id == rollout)
    rig.append(Topic.ROLLOUTS, rollout, again)
    rig.final(rig.request(input="go"))
    assert rig.states(rollout) == [RolloutState.STARTED, RolloutState.SUCCEEDED]


def test_poison_requests_are_dead_letters(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no request, and another run's rollout, stop nothing; the log says what to do about them."""
    rollout = rig.request(input="go")
    rig.final(rollout)
    own = next(value for value in rig.values(Topic.ROLLOUTS) if rollout.encode() in value)
    rig.append(Topic.ROLLOUTS, "x", b"\xff")
    rig.append(Topic.ROLLOUTS, "y", own.replace(b"ab12cd34", b"99999999"))
    until(lambda: len(rig.values(Topic.DEAD_LETTERS)) >= 2)
    until(lambda: (rig.metrics.value(DEAD_LETTERS), rig.metrics.value(DEAD_LETTERS, "foreign_run")) == (2, 1))
    assert row_of("foreign_run").remedy in caplog.text
    assert rig.final(rig.request(input="go")).state is RolloutState.SUCCEEDED
