"""The producers on an in-memory log: real gateways, a scripted engine, a runner; each in a thread of its own.

with Rig() as rig:
    rig.start_gateways()
    rig.start_runner(AgentConfig(callable="agent.py:solve", cwd=...), RewardConfig(grader="grade.py:grade"), folder)
    rollout = rig.request(input="what is 12 plus 30?")
    event = rig.final(rollout)
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.fake_engine.scripted import ScriptedEngine
from tests.memory_log import MemoryLog
from tests.serving import free_port
from tests.versions import claim, label, manifest
from tracegrad.producers.asgi import serve
from tracegrad.producers.llm_gateway import app as llm_gateway
from tracegrad.producers.llm_gateway.config import EngineRef, LlmConfig, LlmHandles, PolicyConfig
from tracegrad.producers.otlp_gateway import app as otlp_gateway
from tracegrad.producers.otlp_gateway.config import OtlpConfig, OtlpHandles
from tracegrad.producers.runner import runner
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.schemas.ids import RolloutId, RunHash, RunName, group_id, rollout_id
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import CALLS, CallRecord, CallsClosed, Purpose
from tracegrad.schemas.records.rollouts import (
    REWARDS,
    ROLLOUT_EVENTS,
    ROLLOUTS,
    GroupRef,
    Limits,
    Reward,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import Topic, Topics

RUN_HASH = RunHash("ab12cd34")
TOPICS = Topics(run=RunName("test"))
T = TypeVar("T")


def rollout_of(index: int, member: int = 0) -> RolloutId:
    """The id of a rollout of the test run."""
    return rollout_id(group_id(RUN_HASH, "train", index), member)


def until(condition: Callable[[], T | None], timeout_s: float = 60.0) -> T:
    """The first true value of the condition."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("expected the condition to come true in time")


class Rig:
    """Everything that a runner talks to. A context manager: all threads end with it."""

    otlp = OtlpConfig()

    def __init__(self, log: Log | None = None, topics: Topics = TOPICS) -> None:
        self.memory = MemoryLog()
        self.topics = topics
        if log is None:
            self.memory.create_topics(topics, policies=["policy"])
        self.log: Log = log or self.memory
        self.engine = ScriptedEngine(label=label(0))
        self.llm_url = self.otlp_url = ""
        self.errors: list[BaseException] = []
        self._numbers = itertools.count()
        self._threads: list[tuple[threading.Event, threading.Thread]] = []

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        for stop, thread in reversed(self._threads):
            stop.set()
            thread.join(20)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def spawn(self, target: Callable[..., Any], **arguments: Any) -> threading.Event:
        """Runs an entry point in a thread until the rig ends, or until the event returned is set."""
        stop = threading.Event()

        def guarded() -> None:
            try:
                target(**arguments, stop=stop)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append((stop, thread))
        thread.start()
        return stop

    def start_gateways(self, **llm: Any) -> None:
        """The engine, the LLM gateway and the OTLP gateway."""
        engine_port, llm_port, otlp_port = free_port(), free_port(), free_port()
        self.spawn(lambda stop: serve_engine(self.engine, engine_port, stop))
        self.llm_url, self.otlp_url = f"http://127.0.0.1:{llm_port}", f"http://127.0.0.1:{otlp_port}"
        self.publish(0)
        engine = EngineRef(id="e0", url=f"http://127.0.0.1:{engine_port}")
        self.spawn(
            llm_gateway.run,
            config=LlmConfig(**{"engine_wait_s": 0.5, "end_wait_s": 2.0, **llm}),
            policy=PolicyConfig(model="none"),
            handles=LlmHandles(port=llm_port, run_hash=RUN_HASH, engines=(engine,)),
            topics=self.topics,
            log=self.log,
            metrics=Metrics(),
        )
        self.start_otlp(otlp_port)
        for url in (self.llm_url, self.otlp_url):
            until(lambda url=url: is_healthy(url))  # type: ignore[misc]

    def start_otlp(self, port: int) -> threading.Event:
        """The OTLP gateway alone."""
        self.otlp_url = f"http://127.0.0.1:{port}"
        handles = OtlpHandles(port=port, ack_timeout_s=8.0)
        common: dict[str, Any] = {"topics": self.topics, "log": self.log, "metrics": Metrics()}
        return self.spawn(otlp_gateway.run, config=self.otlp, handles=handles, **common)

    def start_runner(self, agent: AgentConfig, reward: RewardConfig, folder: Path, **tokens: str) -> threading.Event:
        """A runner; what its children write to stderr goes into the folder."""
        handles = self.runner_handles(folder, **tokens)
        return self.spawn(runner.run, agent=agent, reward=reward, handles=handles, topics=self.topics, log=self.log)

    def runner_handles(self, folder: Path, **tokens: str) -> RunnerHandles:
        """Where a runner of the test run works."""
        return RunnerHandles(
            run_hash=RUN_HASH, llm_url=self.llm_url, otlp_endpoint=self.otlp_url, log_dir=str(folder), **tokens
        )

    def append(self, topic: Topic, key: str, value: bytes) -> None:
        """One acknowledged record."""
        writer = self.log.writer()
        writer.append(self.topics.name(topic), key=key.encode(), value=value).result(10)
        writer.close()

    def publish(self, version: int) -> None:
        """A manifest on `weights`, so that the gateway accepts the engine's label."""
        if version == 0:
            self.append(Topic.WEIGHTS, "policy", WEIGHTS.encode(claim()))
        self.append(Topic.WEIGHTS, "policy", WEIGHTS.encode(manifest(version)))

    def prepare(self, **fields: Any) -> RolloutRequest:
        """A request of a rollout that has not been asked for."""
        index = next(self._numbers)
        limits = Limits(time_s=fields.pop("time_s", 20.0), max_attempts=fields.pop("max_attempts", 3))
        return RolloutRequest(
            rollout_id=rollout_of(index),
            group=GroupRef(id=group_id(RUN_HASH, "train", index), size=1, member=0, index=index),
            limits=limits,
            **{
                "task_id": str(index),
                "input": "what is 12 plus 30?",
                "policy": "policy",
                "purpose": Purpose.TRAIN,
                "rewards_awaited": ("reward",),
                **fields,
            },
        )

    def request(self, **fields: Any) -> RolloutId:
        """Asks for one rollout."""
        request = self.prepare(**fields)
        self.append(Topic.ROLLOUTS, request.rollout_id, ROLLOUTS.encode(request))
        return RolloutId(request.rollout_id)

    def values(self, topic: Topic) -> list[bytes]:
        """All values of a topic."""
        name = self.topics.name(topic)
        if self.log is self.memory:
            return [record.value or b"" for record in self.memory.records(name)]
        reader = self.log.tail([name])
        ends = self.log.offsets(name)
        found: list[bytes] = []
        with contextlib.closing(reader):
            while any(reader.positions()[where] < ends[where.partition].end for where in reader.positions()):
                found += [record.value or b"" for record in reader.read(timeout_s=0.1)]
        return found

    def events(self, rollout: str) -> list[RolloutEvent]:
        """The events of a rollout, in order."""
        events = [ROLLOUT_EVENTS.decode(value) for value in self.values(Topic.ROLLOUT_EVENTS)]
        return [event for event in events if event.rollout_id == rollout]

    def final(self, rollout: str, timeout_s: float = 90.0) -> RolloutEvent:
        """The final event of a rollout, waited for."""

        def found() -> RolloutEvent | None:
            if self.errors:
                raise self.errors[0]
            return next((event for event in self.events(rollout) if event.is_final), None)

        return until(found, timeout_s)

    def states(self, rollout: str) -> list[RolloutState]:
        """The states of a rollout, in order."""
        return [event.state for event in self.events(rollout)]

    def rewards(self, rollout: str) -> dict[str, Reward]:
        """The rewards of a rollout by name."""
        rewards = [REWARDS.decode(value) for value in self.values(Topic.REWARDS)]
        return {reward.name: reward for reward in rewards if reward.rollout_id == rollout}

    def calls(self, rollout: str) -> list[CallRecord | CallsClosed]:
        """The call records of a rollout, in order."""
        calls = [CALLS.decode(value) for value in self.values(Topic.LLM_CALLS)]
        return [call for call in calls if call.rollout_id == rollout]

    def spans(self) -> list[tuple[str, Span]]:
        """(service, span) of all that the OTLP gateway wrote."""
        found: list[tuple[str, Span]] = []
        for value in self.values(Topic.OTLP_SPANS):
            for resource_spans in ExportTraceServiceRequest.FromString(value).resource_spans:
                names = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
                for scope in resource_spans.scope_spans:
                    found += [(names.get("service.name", ""), span) for span in scope.spans]
        return found


def serve_engine(engine: ScriptedEngine, port: int, stop: threading.Event) -> None:
    """The scripted engine on a port."""
    serve(engine.app, host="127.0.0.1", port=port, stop=stop, name="engine")


@contextlib.contextmanager
def running_engine(engine: ScriptedEngine) -> Iterator[str]:
    """Its URL; it serves, in a thread, what weight sync loads."""
    stop, port = threading.Event(), free_port()
    thread = threading.Thread(target=serve_engine, args=(engine, port, stop))
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def is_healthy(url: str) -> bool:
    """Whether a service answers."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False
