"""The LLM gateway is killed between the calls of running attempts, and during them; real Kafka, hosts and clients.

Eight attempts of three calls each. After their first call the gateway is killed, they make their second while it is
dead, and it comes back: none is aborted. During the second it is killed again: agents whose client asks again go on in
the same attempt, the others are made again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.keys import KEY, RUN_HASH
from tests.producers.llm_gateway.harness import GENERATE, full_prompt
from tests.producers.runner.rig import Rig, running_engine
from tests.producers.runner.test_runner import PLAIN
from tests.serving import is_healthy, until
from tests.versions import publish
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.producers.exposure import bind
from tracegrad.producers.llm_gateway.config import EngineRef, LlmHandles
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.log.mac import KeyRing
from tracegrad.schemas.log.signed import SignedLog
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import CallOutcome, CallRecord, CallsClosed
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.timeout(400)]
STARTED, ABORTED, SUCCEEDED = RolloutState.STARTED, RolloutState.ABORTED, RolloutState.SUCCEEDED
GATEWAY = """
import sys, threading, msgspec
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.producers.llm_gateway.app import run
from tracegrad.producers.llm_gateway.config import LlmConfig, LlmHandles, PolicyConfig
from tracegrad.schemas.log.signed import SignedLog
from tracegrad.schemas.log.mac import KeyRing
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics
servers = sys.argv[1]
handles = msgspec.json.decode(sys.argv[2], type=LlmHandles)
topics = msgspec.json.decode(sys.argv[3], type=Topics)
ring = KeyRing(handles.run_hash, {handles.run_hash: handles.key})
log = SignedLog(KafkaLog(servers), ring, topics=topics, metrics=Metrics())
run(
    LlmConfig(), PolicyConfig(model="none"), handles, topics=topics, log=log, stop=threading.Event(), metrics=Metrics()
)
"""
AGENT = """
import json, os, pathlib, time, urllib.error, urllib.request

def ask(messages, tries):
    key = "Bearer " + os.environ["OPENAI_API_KEY"]
    headers = {"content-type": "application/json", "authorization": key}
    from opentelemetry import propagate
    propagate.inject(headers)
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    for left in reversed(range(tries)):
        request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["choices"][0]["message"]
        except OSError:
            if not left:
                raise
            time.sleep(0.3)

def solve(task):
    messages = [{"role": "user", "content": task["input"]}]
    for number in range(3):
        answer = ask(messages, 200 if task["input"].startswith("patient") else 1)
        messages += [answer, {"role": "user", "content": "go on"}]
        pathlib.Path(f"{task['id']}.at.{number}").touch()
        deadline = time.monotonic() + 120
        while not pathlib.Path(f"go.{number}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    return answer["content"]
"""
GRADE = """
def grade(task, output, attempt):
    return float(len(attempt["calls"]))
"""


class Gateway:
    """One that can be killed; who starts it listens for it."""

    def __init__(self, bootstrap: str, handles: LlmHandles, topics: Topics) -> None:
        assert handles.fd is not None
        self._fd = handles.fd
        told = (msgspec.json.encode(record).decode() for record in (handles, topics))
        self.url = f"http://127.0.0.1:{handles.port}"
        self._command = [sys.executable, "-c", GATEWAY, bootstrap, *told]
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        self._process = subprocess.Popen(self._command, pass_fds=[self._fd])
        until(lambda: is_healthy(self.url), what="the gateway")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)


@contextmanager
def running(rig: Rig, kafka: KafkaLog) -> Iterator[Gateway]:
    """The engine and a gateway process, which the rig's runner will ask."""
    with running_engine(rig.engine) as engine_url, bind("127.0.0.1", 0) as held:
        publish(rig.log, rig.topics, 0, claims=True)
        engines = (EngineRef(id="e0", url=engine_url),)
        handles = LlmHandles(
            port=held.getsockname()[1],
            fd=held.fileno(),
            run_hash=RUN_HASH,
            key=KEY,
            engines=engines,
            renders_locally=False,
        )
        gateway = Gateway(kafka.bootstrap_servers, handles, rig.topics)
        rig.llm_url = gateway.url
        try:
            yield gateway
        finally:
            gateway.kill()


def check_attempt(rig: Rig, rollout: str, attempt: str) -> None:
    """Three answers, each prompt beginning with all that was sampled before, each told of as delivered."""
    of_attempt = [call for call in rig.calls(rollout) if getattr(call, "attempt_id", "") == attempt]
    (closed,) = (call for call in of_attempt if isinstance(call, CallsClosed))
    calls = [call for call in of_attempt if isinstance(call, CallRecord)]
    assert closed.outcomes.keys() == {call.call_id for call in calls}
    taken = [call for call in calls if closed.outcomes[call.call_id] is CallOutcome.DELIVERED]
    assert {*closed.outcomes.values()} <= {CallOutcome.DELIVERED, CallOutcome.SUPERSEDED}
    assert [call.splice.kind for call in taken] == ["first", "extended", "extended"]
    before: list[int] = []
    for call in taken:
        prompt = full_prompt(call, calls)
        assert prompt[: len(before)] == before
        before = prompt + ids_from_bytes(call.sampled_ids).tolist()


def test_attempts_outlive_a_gateway_that_is_killed(kafka_log: KafkaLog, fresh_topics: Topics, tmp_path: Path) -> None:
    """Between their calls all do; during a call those whose client asks again; what is left is made again."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "grade.py").write_text(GRADE)
    log = SignedLog(kafka_log, KeyRing(RUN_HASH, {RUN_HASH: KEY}), topics=fresh_topics, metrics=Metrics())
    with Rig(log, fresh_topics) as rig, running(rig, kafka_log) as gateway:
        rig.engine.policy = lambda prompt, draw: Reply(f"12{draw % 1000}")
        rig.start_otlp()
        agent = AgentConfig(callable="agent.py:solve", cwd=str(tmp_path), env=PLAIN, hosts=2, concurrency=8)
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), tmp_path)
        kinds = ["patient"] * 4 + ["hasty"] * 4
        rollouts = {rig.request(input=f"{kind} {number}", time_s=200.0): kind for number, kind in enumerate(kinds)}

        def are_at(number: int, num: int) -> bool:
            return len(list(tmp_path.glob(f"*.at.{number}"))) >= num

        until(lambda: are_at(0, 8), 120, what="all between their first and second call")
        gateway.kill()
        rig.engine.delay_s = 30.0
        num_asked = sum(path == GENERATE for path, _ in rig.engine.requests)
        (tmp_path / "go.0").touch()
        # Each agent looks twenty times in that time, and asks; the hasty ones ask once.
        time.sleep(1.0)
        gateway.start()
        until(
            lambda: sum(path == GENERATE for path, _ in rig.engine.requests) >= num_asked + 8,
            120,
            what="all in their second call",
        )
        assert {tuple(rig.states(rollout)) for rollout in rollouts} == {(STARTED,)}
        gateway.kill()
        rig.engine.delay_s = 0.0
        gateway.start()
        (tmp_path / "go.1").touch()
        (tmp_path / "go.2").touch()
        for rollout, kind in rollouts.items():
            final = rig.final(rollout, 150)
            expected = [STARTED, SUCCEEDED] if kind == "patient" else [STARTED, ABORTED, STARTED, SUCCEEDED]
            assert rig.states(rollout) == expected
            assert all(event.calls_closed for event in rig.events(rollout) if event.state.is_end)
            check_attempt(rig, rollout, final.attempt_id)
            assert rig.rewards(rollout)["reward"].value == 3.0
