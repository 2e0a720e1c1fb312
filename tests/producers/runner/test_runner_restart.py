"""The runner on real Kafka: killed with attempts in flight, joined by another, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.producers.runner.rig import ASKING, Rig
from tests.producers.runner.test_runner import AGENT, GRADE, PLAIN
from tests.serving import is_alive, until
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.records.calls import LLM_CALLS, CallsClosed
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, RolloutState
from tracegrad.schemas.topics import Stage, Topic, Topics

pytestmark = [pytest.mark.kafka, pytest.mark.e2e]

PROCESS = """
import logging, sys, threading, msgspec
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.producers.runner.runner import run
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics
logging.basicConfig(level=logging.WARNING)
bootstrap, agent, reward, handles, topics = sys.argv[1:]
run(
    msgspec.json.decode(agent, type=AgentConfig),
    msgspec.json.decode(reward, type=RewardConfig),
    msgspec.json.decode(handles, type=RunnerHandles),
    topics=msgspec.json.decode(topics, type=Topics),
    log=KafkaLog(bootstrap),
    stop=threading.Event(),
    metrics=Metrics(),
)
"""


def start_process(rig: Rig, folder: Path, bootstrap: str) -> subprocess.Popen[bytes]:
    """A runner as a process of its own."""
    shutil.copy(ASKING, folder)
    agent = AgentConfig(callable="agent.py:solve", cwd=str(folder), env=PLAIN, hosts=1, concurrency=6)
    told = (agent, RewardConfig(grader="grade.py:grade"), rig.runner_handles(folder), rig.topics)
    arguments = [bootstrap, *(msgspec.json.encode(record).decode() for record in told)]
    return subprocess.Popen([sys.executable, "-c", PROCESS, *arguments])


def kill(process: subprocess.Popen[bytes]) -> list[int]:
    """SIGKILL; the processes that it had started."""
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    return children


@pytest.mark.timeout(300)
def test_a_killed_runner_loses_no_rollout(kafka_log: KafkaLog, fresh_topics: Topics, tmp_path: Path) -> None:
    """Killed twice with attempts in flight, the second time with another runner beside it.

    Each rollout gets exactly one final event and one graded episode; every attempt that was started has an end; no
    agent process is left; at the end every request is committed.
    """
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "grade.py").write_text(GRADE)
    with Rig(kafka_log, fresh_topics) as rig:
        rig.start_gateways()
        processes = [start_process(rig, tmp_path, kafka_log.bootstrap_servers)]
        rollouts = [rig.request(input="slow", expected="yes", max_attempts=6) for _ in range(18)]

        def is_under_way(num_succeeded: int) -> bool:
            """At least two attempts in flight, and so many have succeeded."""
            states = Counter(ROLLOUT_EVENTS.decode(value).state for value in rig.values(Topic.ROLLOUT_EVENTS))
            num_ended = sum(count for state, count in states.items() if state.is_end)
            return states[RolloutState.STARTED] - num_ended >= 2 and states[RolloutState.SUCCEEDED] >= num_succeeded

        try:
            until(lambda: is_under_way(0), 90)
            left_behind = kill(processes[0])
            processes += [start_process(rig, tmp_path, kafka_log.bootstrap_servers) for _ in range(2)]
            until(lambda: is_under_way(1), 90)
            left_behind += kill(processes[1])
            until(lambda: is_committed(rig), 150)
        finally:
            for process in processes:
                if process.poll() is None:
                    kill(process)
        until(lambda: not any(map(is_alive, left_behind)))
        events = [ROLLOUT_EVENTS.decode(value) for value in rig.values(Topic.ROLLOUT_EVENTS)]
        finals = [event for event in events if event.is_final]
        assert Counter(event.rollout_id for event in finals) == Counter(rollouts)
        assert {event.state for event in finals} == {RolloutState.SUCCEEDED}
        started = {(e.rollout_id, e.attempt_id) for e in events if e.state is RolloutState.STARTED}
        assert started == {(e.rollout_id, e.attempt_id) for e in events if e.state.is_end}
        assert any(event.error == "its runner stopped" for event in events)
        ends = {(event.rollout_id, event.attempt_id) for event in finals}
        rewards = [REWARDS.decode(value) for value in rig.values(Topic.REWARDS)]
        assert ends <= {(reward.rollout_id, reward.attempt_id) for reward in rewards if reward.value == 1.0}
        calls = [LLM_CALLS.decode(value) for value in rig.values(Topic.LLM_CALLS)]
        assert ends <= {(call.rollout_id, call.attempt_id) for call in calls if isinstance(call, CallsClosed)}


def is_committed(rig: Rig) -> bool:
    """Whether every request's offset is committed."""
    topic = rig.topics.name(Topic.ROLLOUTS)
    ends = {partition: kept.end for partition, kept in rig.log.offsets(topic).items() if kept.end}
    return dict(rig.log.committed(rig.topics.group(Stage.RUNNER), topic)) == ends
