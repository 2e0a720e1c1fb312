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
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.fake_engine.scripted import ScriptedEngine
from tests.memory_log import MemoryLog
from tests.producers.keys import KEY, RUN_HASH
from tests.serving import Background, free_port, is_healthy, until
from tests.streams.make import spans_of
from tests.versions import label, publish
from tracegrad.producers.asgi import serve
from tracegrad.producers.llm_gateway import app as llm_gateway
from tracegrad.producers.llm_gateway.config import EngineRef, LlmConfig, LlmHandles, PolicyConfig
from tracegrad.producers.otlp_gateway import app as otlp_gateway
from tracegrad.producers.otlp_gateway.config import OtlpConfig, OtlpHandles
from tracegrad.producers.runner import runner
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.schemas.ids import RolloutId, RunName, group_id, rollout_id
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Log, LogWriter
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import LLM_CALLS, LlmCall, Purpose
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
from tracegrad.schemas.topics import Topic, Topics

TOPICS = Topics(run=RunName("test"))
ASKING = Path(__file__).parent / "asking.py"
"""What agents of these tests import, from their own folder."""


class Rig:
    """Everything that a runner talks to. A context manager: all threads end with it."""

    def __init__(self, log: Log | None = None, topics: Topics = TOPICS) -> None:
        self.memory = MemoryLog()
        self.topics = topics
        if log is None:
            self.memory.create_topics(topics, policies=["policy"])
        self.log: Log = log or self.memory
        self.engine = ScriptedEngine(label=label(0))
        self.llm_url = self.otlp_url = ""
        self.metrics = Metrics()
        """What its runners count."""
        self._numbers = itertools.count()
        self._parts = contextlib.ExitStack()
        self._threads: list[Background] = []

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def spawn(self, run: Callable[[threading.Event], object]) -> None:
        """Runs an entry point, given its stop, in a thread until the rig ends."""
        self._threads.append(self._parts.enter_context(Background(run)))

    def start_gateways(self, *, otlp_token: str | None = None, **llm: Any) -> None:
        """The engine, the LLM gateway and the OTLP gateway."""
        port = free_port()
        engine_url = self._parts.enter_context(running_engine(self.engine))
        publish(self.log, self.topics, 0, claims=True)
        config = LlmConfig(**{"engine_wait_s": 0.5, "end_wait_s": 2.0, **llm})
        handles = LlmHandles(
            port=port,
            run_hash=RUN_HASH,
            key=KEY,
            engines=(EngineRef(id="e0", url=engine_url),),
            renders_locally=True,
        )
        self.spawn(
            lambda stop: llm_gateway.run(
                config,
                PolicyConfig(model="none"),
                handles,
                topics=self.topics,
                log=self.log,
                stop=stop,
                metrics=Metrics(),
            )
        )
        self.llm_url = f"http://127.0.0.1:{port}"
        self.start_otlp(token=otlp_token)
        until(lambda: is_healthy(self.llm_url))

    def start_otlp(self, *, token: str | None = None) -> None:
        """The OTLP gateway alone."""
        port = free_port()
        config = OtlpConfig(token=token)
        handles = OtlpHandles(port=port, run_hash=RUN_HASH, key=KEY, ack_timeout_s=8.0)
        self.spawn(
            lambda stop: otlp_gateway.run(
                config, handles, topics=self.topics, log=self.log, stop=stop, metrics=Metrics()
            )
        )
        self.otlp_url = f"http://127.0.0.1:{port}"
        until(lambda: is_healthy(self.otlp_url))

    def start_runner(self, agent: AgentConfig, reward: RewardConfig, folder: Path, **more: Any) -> None:
        """A runner; what its children write to stderr goes into the folder, and beside the agent what it may import."""
        shutil.copy(ASKING, agent.cwd or folder)
        handles = self.runner_handles(folder, **more)
        self.spawn(
            lambda stop: runner.run(
                agent, reward, handles, topics=self.topics, log=self.log, stop=stop, metrics=self.metrics
            )
        )

    def runner_handles(self, folder: Path, **more: Any) -> RunnerHandles:
        """Where a runner of the test run works."""
        urls = {"llm_url": self.llm_url, "otlp_endpoint": self.otlp_url}
        return RunnerHandles(run_hash=RUN_HASH, key=KEY, log_dir=str(folder), **{**urls, **more})

    @cached_property
    def writer(self) -> LogWriter:
        """One for all records: on Kafka each connects, and requests would come more slowly than they are run."""
        writer = self.log.writer()
        self._parts.callback(writer.close)
        return writer

    def append(self, topic: Topic, key: str, value: bytes) -> None:
        """One acknowledged record."""
        self.writer.append(self.topics.name(topic), key=key.encode(), value=value).result(10)

    def prepare(self, **fields: Any) -> RolloutRequest:
        """A request of a rollout that has not been asked for."""
        index = next(self._numbers)
        group = group_id(RUN_HASH, "train", index)
        limits = Limits(time_s=fields.pop("time_s", 20.0), max_attempts=fields.pop("max_attempts", 3))
        return RolloutRequest(
            rollout_id=rollout_id(group, 0),
            group=GroupRef(id=group, size=1, member=0, index=index),
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
        return [record.value or b"" for record in read_to_end(self.log, self.topics.name(topic))]

    def events(self, rollout: str) -> list[RolloutEvent]:
        """The events of a rollout, in order."""
        events = [ROLLOUT_EVENTS.decode(value) for value in self.values(Topic.ROLLOUT_EVENTS)]
        return [event for event in events if event.rollout_id == rollout]

    def final(self, rollout: str, timeout_s: float = 90.0) -> RolloutEvent:
        """The final event of a rollout, waited for."""

        def found() -> RolloutEvent | None:
            for thread in self._threads:
                if thread.error is not None:
                    raise thread.error
            return next((event for event in self.events(rollout) if event.is_final), None)

        return until(found, timeout_s)

    def states(self, rollout: str) -> list[RolloutState]:
        """The states of a rollout, in order."""
        return [event.state for event in self.events(rollout)]

    def rewards(self, rollout: str) -> dict[str, Reward]:
        """The rewards of a rollout by name."""
        rewards = [REWARDS.decode(value) for value in self.values(Topic.REWARDS)]
        return {reward.name: reward for reward in rewards if reward.rollout_id == rollout}

    def calls(self, rollout: str) -> list[LlmCall]:
        """The call records of a rollout, in order."""
        calls = [LLM_CALLS.decode(value) for value in self.values(Topic.LLM_CALLS)]
        return [call for call in calls if call.rollout_id == rollout]

    def spans(self) -> list[tuple[str, Span]]:
        """(service, span) of all that the OTLP gateway wrote."""
        return spans_of(self.values(Topic.OTLP_SPANS))


@contextlib.contextmanager
def running_engine(engine: ScriptedEngine) -> Iterator[str]:
    """Its URL; it serves, in a thread, what weight sync loads."""
    port = free_port()
    with Background(lambda stop: serve(engine.app, host="127.0.0.1", port=port, stop=stop, name="engine")):
        yield f"http://127.0.0.1:{port}"
