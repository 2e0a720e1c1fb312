"""Conversations of captured agents on real parts: one episode each, though gateway and assembler die during a step."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Tracer

pytest.importorskip("torch")

from tests.compose.run.running import RunningUp, settled
from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.runner.rig import running_engine
from tests.serving import until
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.calls import LLM_CALLS, CallOpen
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(400)]
T = TypeVar("T")

NAMES = ("header", "baggage", "gen_ai.conversation.id", "session.id", "tool-call id")
STEP_S = 11.0
"""A tool's step: longer than the silence that ends an episode."""
ASK = {"role": "user", "content": "what is 12 plus 30?"}
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]


class Agent:
    """One agent with its tracer, which speaks of one conversation in one way."""

    def __init__(self, name: str, variables: dict[str, str]) -> None:
        self.name = name
        self.url = variables["OPENAI_BASE_URL"]
        said = {"session.id": f"c-{name}"} if name == "session.id" else {}
        self._provider = TracerProvider(resource=Resource({"service.name": name, **said}))
        endpoint = f"{variables['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces"
        self._provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self.tracer: Tracer = self._provider.get_tracer("agent")
        self.spoken = {"gen_ai.conversation.id": f"c-{name}"} if name == "gen_ai.conversation.id" else {}
        self.num_spans = 0

    def in_span(self, operation: str, work: Callable[[], T], **attributes: str) -> T:
        """Work within a span."""
        self.num_spans += 1
        said = {
            "gen_ai.operation.name": operation,
            **self.spoken,
            **{k.replace("__", "."): v for k, v in attributes.items()},
        }
        with self.tracer.start_as_current_span(operation, attributes=said):
            return work()

    def call(self, messages: list[dict[str, Any]], *, patience_s: float = 90.0) -> dict[str, Any]:
        """The answer's message; asked again while the gateway is not there."""
        headers: dict[str, str] = {}
        inject(headers)
        if self.name in ("header", "in flight"):
            headers["x-conversation-id"] = f"c-{self.name}"
        if self.name == "baggage":
            headers["baggage"] = f"session.id=c-{self.name}"
        body = {"model": "policy", "messages": messages, "tools": TOOLS, "max_tokens": 64}
        deadline = time.monotonic() + patience_s
        while True:
            try:
                answer = httpx.post(f"{self.url}/chat/completions", json=body, headers=headers, timeout=90)
                if answer.status_code == 200:
                    return dict(answer.json()["choices"][0]["message"])
            except httpx.TransportError:
                if patience_s == 0:
                    raise
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.5)

    def talk(self, rested: threading.Event) -> None:
        """Two requests, with a step between that lasts until `rested`."""
        asked: list[dict[str, Any]] = []

        def step() -> None:
            assert rested.wait(120)

        def plan() -> None:
            asked.append(self.in_span("chat", lambda: self.call([ASK])))
            if self.name != "tool-call id":
                self.in_span("execute_tool", step, gen_ai__tool__name="calc", gen_ai__tool__call__id=minted())
            else:
                # Its tool runs elsewhere, in a trace of its own.
                step()
                in_own_trace(
                    lambda: self.in_span(
                        "execute_tool", lambda: None, gen_ai__tool__name="calc", gen_ai__tool__call__id=minted()
                    )
                )
                go_on()

        def minted() -> str:
            return str(asked[0]["tool_calls"][0]["id"])

        def go_on() -> None:
            result = {"role": "tool", "tool_call_id": minted(), "content": "42"}
            self.in_span("chat", lambda: self.call([ASK, asked[0], result]))

        self.in_span("invoke_agent", plan, gen_ai__agent__name="planner")
        if self.name != "tool-call id":
            self.in_span("invoke_agent", go_on, gen_ai__agent__name="critic")


def in_own_trace(work: Callable[[], None]) -> None:
    """As in another process."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)


def test_a_conversation_is_one_episode_though_its_processes_are_killed(tmp_path: Path, broker: str) -> None:
    """Five, told in five ways, with a step longer than `idle_s`; and one whose call is lost with its gateway."""
    engine = ScriptedEngine()
    more = "streams.captured_deadline_s = 75.0"
    with running_engine(engine) as url, RunningUp(settled(tmp_path, "talks", broker, url, more)) as run:
        until(lambda: run.pids("assemble") and run.pids("llm"), 120)
        variables = run.ask("env")
        wiring = Wiring(RunDir.open(tmp_path / "runs" / "talks"))
        agents = [Agent(name, variables) for name in NAMES]
        lost = Agent("in flight", variables)
        rested = threading.Event()
        with ThreadPoolExecutor(len(agents) + 1) as threads:
            lost.call([ASK])
            talks = [threads.submit(agent.talk, rested) for agent in agents]
            until(lambda: all(agent.num_spans >= 2 for agent in agents), 30)
            began = until(lambda: num_calls(wiring, broker) == len(agents) + 1 and time.monotonic(), 60)
            engine.delay_s = 60.0
            hung = threads.submit(lost.call, [ASK, {"role": "assistant", "content": "?"}, ASK], patience_s=0)
            until(lambda: any(isinstance(told, CallOpen) for told in calls(wiring, broker)), 30)
            for name in ("llm", "assemble"):
                for pid in run.pids(name):
                    os.kill(pid, signal.SIGKILL)
            engine.delay_s = 0.0
            with pytest.raises(httpx.TransportError):
                hung.result(30)
            until(lambda: answers(variables["OPENAI_BASE_URL"]), 60)
            time.sleep(max(0.0, began + STEP_S - time.monotonic()))
            rested.set()
            for talk in talks:
                talk.result(120)
        until(lambda: len(episodes(wiring, broker)) == len(agents) + 1, 150)
        found = episodes(wiring, broker)
        lost.call([ASK])
        report = until(lambda: (said := run.ask("audit"))["missing"] == [] and said, 60)
        assert report["calls"]["terms"].keys() <= {"in episodes", "open"}
        assert sum(report["calls"]["terms"].values()) == 2 * len(agents) + 2
    judge(found, agents)


def judge(found: list[Episode], agents: list[Agent]) -> None:
    """One episode of each, all counts right, and one of the call before the lost one."""
    by_service = {episode.services: episode for episode in found}
    for agent in agents:
        episode = by_service[agent.name,]
        second = "planner" if agent.name == "tool-call id" else "critic"
        assert [made.agent for made in episode.calls] == ["planner", second], agent.name
        assert [made.outcome.value for made in episode.calls] == ["delivered"] * 2, agent.name
        assert [len(made.tools) for made in episode.calls] == [1, 0], agent.name
        assert (episode.num_spans, episode.num_tools, episode.closed_by) == (agent.num_spans, 1, "idle"), agent.name
    alone = by_service[()]
    assert (alone.conversation, alone.closed_by) == (conversation_key("c-in flight"), "deadline")
    assert [made.outcome.value for made in alone.calls] == ["delivered"]


def answers(url: str) -> bool:
    """Whether the gateway is there again."""
    try:
        return httpx.get(f"{url}/models", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def calls(wiring: Wiring, broker: str) -> list[Any]:
    """All of `llm_calls`."""
    records = read_to_end(KafkaLog(broker), wiring.topics.name(Topic.LLM_CALLS))
    return [LLM_CALLS.decode(record.value) for record in records]


def num_calls(wiring: Wiring, broker: str) -> int:
    """Those that were answered."""
    return sum(type(told).__name__ == "CallRecord" for told in calls(wiring, broker))


def episodes(wiring: Wiring, broker: str) -> list[Episode]:
    """Those that have closed."""
    records = read_to_end(KafkaLog(broker), wiring.topics.name(Topic.EPISODES))
    return list({record.value: EPISODES.decode(record.value) for record in records}.values())
