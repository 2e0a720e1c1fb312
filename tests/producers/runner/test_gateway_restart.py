"""The LLM gateway is killed between the calls of running attempts, and during them; real Kafka, hosts and clients.

Eight rollouts of three calls each, of one attempt that counts. The gateway is killed after the first call of all, and
once more while all sample their second: each attempt that was open is aborted and made again, and none of it counts.
"""

from __future__ import annotations

import signal
import subprocess
import sys
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


def check_attempts(rig: Rig, rollout: str) -> None:
    """Every call is of an attempt that began; of the one that was graded all are told of, as one conversation."""
    events = rig.events(rollout)
    begun = {event.attempt_id for event in events if event.state is STARTED}
    assert {event.attempt_id for event in events if event.state.is_end} == begun
    assert {getattr(call, "attempt_id", "") for call in rig.calls(rollout)} <= begun
    of_attempt = [call for call in rig.calls(rollout) if getattr(call, "attempt_id", "") == events[-1].attempt_id]
    (closed,) = (call for call in of_attempt if isinstance(call, CallsClosed))
    calls = [call for call in of_attempt if isinstance(call, CallRecord)]
    assert closed.outcomes == {call.call_id: CallOutcome.DELIVERED for call in calls}
    assert [call.splice.kind for call in calls] == ["first", "extended", "extended"]
    before: list[int] = []
    for call in calls:
        prompt = full_prompt(call, calls)
        assert prompt[: len(before)] == before
        before = prompt + ids_from_bytes(call.sampled_ids).tolist()


def test_every_attempt_at_a_gateway_that_is_killed_is_made_again(
    kafka_log: KafkaLog, fresh_topics: Topics, tmp_path: Path
) -> None:
    """Whatever its agent does meanwhile, and though one attempt may count."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "grade.py").write_text(GRADE)
    log = SignedLog(kafka_log, KeyRing(RUN_HASH, {RUN_HASH: KEY}), topics=fresh_topics, metrics=Metrics())
    with Rig(log, fresh_topics) as rig, running(rig, kafka_log) as gateway:
        rig.engine.policy = lambda prompt, draw: Reply(f"12{draw % 1000}")
        rig.start_otlp()
        agent = AgentConfig(callable="agent.py:solve", cwd=str(tmp_path), env=PLAIN, hosts=2, concurrency=8)
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), tmp_path)
        kinds = ["patient"] * 4 + ["hasty"] * 4
        rollouts = [
            rig.request(input=f"{kind} {number}", time_s=200.0, max_attempts=1) for number, kind in enumerate(kinds)
        ]

        def num_asked() -> int:
            return sum(path == GENERATE for path, _ in rig.engine.requests)

        def are_all(*states: RolloutState) -> bool:
            return all(tuple(rig.states(rollout)) == states for rollout in rollouts)

        until(lambda: len(list(tmp_path.glob("*.at.0"))) >= 8, 120, what="all between their first and second call")
        gateway.kill()
        gateway.start()
        until(lambda: are_all(STARTED, ABORTED, STARTED), 120, what="all made again")
        rig.engine.delay_s = 30.0
        already = num_asked()
        (tmp_path / "go.0").touch()
        until(lambda: num_asked() >= already + 8, 120, what="all in a call")
        gateway.kill()
        rig.engine.delay_s = 0.0
        gateway.start()
        (tmp_path / "go.1").touch()
        (tmp_path / "go.2").touch()
        for rollout in rollouts:
            rig.final(rollout, 150)
            assert rig.states(rollout) == [STARTED, ABORTED, STARTED, ABORTED, STARTED, SUCCEEDED]
            assert [event.gateway_replaced for event in rig.events(rollout)] == [False, True, False, True, False, False]
            check_attempts(rig, rollout)
            assert rig.rewards(rollout)["reward"].value == 3.0
