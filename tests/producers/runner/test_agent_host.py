"""The agent host as a process: time limits, spans that are counted, and what it does without OpenTelemetry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from tests.producers.keys import by_host
from tests.producers.runner.rig import Rig
from tests.serving import free_port, until
from tracegrad.producers.runner.hosted import agent_host, host_main, span_ledger
from tracegrad.producers.runner.hosted.span_ledger import SpanLedger
from tracegrad.schemas import attributes
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.facts import SpanFact
from tracegrad.schemas.topics import Topic
from tracegrad.streams.normalize.read_spans import SpanReader
from tracegrad.streams.normalize.reading.judge_tool import ToolJudge

ROLLOUT = "ab12cd34" + "0" * 19
AGENT = """
import asyncio, time
from opentelemetry import trace

async def solve(task):
    what = task["input"]
    with trace.get_tracer("t").start_as_current_span("work"):
        if what == "hang":
            await asyncio.sleep(60)
        if what == "stubborn":
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass
        if what == "block":
            time.sleep(60)
        if what == "roots":
            from opentelemetry.context import Context
            for name in ("one", "two"):
                trace.get_tracer("t").start_span(name, context=Context()).end()
        if what == "tool server":
            import os, subprocess, sys
            context = trace.get_current_span().get_span_context()
            parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
            subprocess.run([sys.executable, "tool_server.py", parent], check=True)
        if what == "late":
            late = trace.get_tracer("t").start_span("late")
            asyncio.get_running_loop().call_later(0.5, late.end)
        await asyncio.sleep(0)
    if what == "own":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter("http://127.0.0.1:9/v1/traces", timeout=0.1)))
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        provider.get_tracer("own").start_span("mine").end()
    return what
"""

TOOL_SERVER = """
import sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
caller = TraceContextTextMapPropagator().extract({"traceparent": sys.argv[1]})
provider.get_tracer("t").start_span("served", context=caller).end()
"""


class HostProcess:
    """One agent host, spoken to as the runner does."""

    def __init__(self, folder: Path, otlp_url: str, agent: str, env: dict[str, str]) -> None:
        (folder / "agent.py").write_text(agent)
        (folder / "tool_server.py").write_text(TOOL_SERVER)
        self.process = subprocess.Popen(
            [sys.executable, host_main.__file__, agent_host.__file__, "agent.py:solve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={
                **os.environ,
                "OTEL_EXPORTER_OTLP_ENDPOINT": otlp_url,
                "OTEL_EXPORTER_OTLP_HEADERS": f"x-api-key={by_host()['x-api-key']}",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_METRICS_EXPORTER": "none",
                "OTEL_LOGS_EXPORTER": "none",
                "OTEL_SERVICE_NAME": "agent",
                "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*",
                **env,
            },
        )
        self.ready = self.read()

    def read(self) -> dict[str, Any]:
        """The next message."""
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if line.strip())
        message: dict[str, Any] = json.loads(line)
        return message

    def run(self, number: int, what: str, time_s: float = 20.0) -> str:
        """Starts a rollout; its episode id."""
        assert self.process.stdin is not None
        rollout = f"{ROLLOUT}{number}"
        task = {"id": str(number), "input": what}
        message = {"rollout": rollout, "attempt": "0a0b", "task": task, "time_s": time_s}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return rollout + "0a0b"

    def end(self) -> None:
        """Closes stdin, by which the host ends."""
        self.process.communicate(timeout=10)


@contextmanager
def host_of(folder: Path, otlp_url: str, *, agent: str = AGENT, **env: str) -> Iterator[HostProcess]:
    """A host that ends with the block."""
    host = HostProcess(folder, otlp_url, agent, env)
    try:
        yield host
    finally:
        host.end()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """An OTLP gateway."""
    with Rig() as rig:
        rig.start_otlp()
        yield rig


@pytest.fixture(scope="module")
def host(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    """One host for the tests that leave it healthy."""
    with host_of(tmp_path_factory.mktemp("agent"), rig.otlp_url) as host:
        yield host


def received(rig: Rig, episode: str) -> set[str]:
    """Names of the spans on the log that name an episode, by trace id or attributes."""
    found = set()
    for _, span in rig.spans():
        names = {a.key: a.value.string_value for a in span.attributes}
        if episode in (span.trace_id.hex(), names.get("rollout.id", "") + names.get("attempt.id", "")):
            found.add(span.name)
    return found


def counted(rig: Rig, episode: str) -> dict[str, bool]:
    """Names of the spans that name an episode -> whether they say that they were counted, as streams read them."""
    reader = SpanReader(frozenset({ROLLOUT[:8]}), judge=ToolJudge(), metrics=Metrics())
    scans = [reader.read(value, signer=None).facts for value in rig.values(Topic.OTLP_SPANS)]
    facts = [fact for scan in scans for (key, _), found in scan.items() for fact in found if key == episode]
    return {fact.name: fact.is_counted for fact in facts if isinstance(fact, SpanFact)}


@pytest.mark.e2e
def test_spans_exported_are_counted_per_episode(rig: Rig, host: HostProcess) -> None:
    """Concurrent rollouts: each result names as many spans as the log has of its trace, after they are there."""
    episodes = [host.run(number, "go") for number in range(4)]
    results = {result["episode"]: result for result in (host.read() for _ in episodes)}
    for episode in episodes:
        assert (results[episode]["state"], results[episode]["output"]) == ("succeeded", '"go"')
        assert (results[episode]["spans_exported"], results[episode]["spans_lost"]) == (1, 0)
        assert received(rig, episode) == {"work"}


@pytest.mark.e2e
def test_spans_in_traces_of_their_own_name_their_episode(rig: Rig, host: HostProcess) -> None:
    """A framework that starts new roots loses nothing: the spans bear rollout and attempt, and are counted."""
    episode = host.run(5, "roots")
    assert host.read()["spans_exported"] == 3
    assert received(rig, episode) == {"work", "one", "two"}
    assert counted(rig, episode) == {"work": True, "one": True, "two": True}


@pytest.mark.e2e
@pytest.mark.parametrize(("what", "other"), [("tool server", "served"), ("late", "late")])
def test_only_counted_spans_say_so(rig: Rig, host: HostProcess, what: str, other: str) -> None:
    """Neither one of a child process, which has our environment and our trace id, nor one that ended too late."""
    episode = host.run({"late": 8}.get(what, 9), what)
    assert host.read()["spans_exported"] == 1
    until(lambda: other in received(rig, episode))
    assert counted(rig, episode) == {"work": True, other: False}


@pytest.mark.e2e
def test_a_provider_of_the_agents_own_is_flushed_and_counted(rig: Rig, host: HostProcess) -> None:
    """Its export to our endpoint counts; elsewhere, or to the console, it does not."""
    episode = host.run(6, "own")
    result = host.read()
    assert (result["state"], result["spans_exported"], result["spans_lost"]) == ("succeeded", 2, 0)
    assert received(rig, episode) == {"work", "mine"}


@pytest.mark.e2e
def test_a_time_limit_cancels_an_async_agent(rig: Rig, host: HostProcess) -> None:
    """Truncated; the span of the cancelled work is flushed; the host stays in use."""
    host.run(7, "hang", time_s=0.2)
    result = host.read()
    assert (result["state"], result["error"], result.get("hung")) == ("truncated", "time limit", None)
    assert result["spans_exported"] == 1


@pytest.mark.e2e
def test_an_agent_that_blocks_the_loop_is_told_from_its_neighbour(tmp_path: Path, rig: Rig) -> None:
    """The one that holds the loop is named, though the other one's time is over first; nothing is said of that."""
    with host_of(tmp_path, rig.otlp_url) as host:
        host.run(1, "hang", time_s=2.6)
        time.sleep(0.1)
        blocking = host.run(2, "block", time_s=20.0)
        result = host.read()
        assert (result["episode"], result["state"], result["blocks"]) == (blocking, "truncated", True)


@pytest.mark.e2e
def test_without_the_sdk_agents_run_untraced(tmp_path: Path) -> None:
    """Said once, in `ready`; nothing is counted, and the agent runs."""
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('none here', name='opentelemetry')")
    agent = "async def solve(task):\n    return task['input']\n"
    with host_of(tmp_path, "http://127.0.0.1:9", agent=agent, PYTHONPATH=str(tmp_path)) as host:
        assert host.ready["untraced"] == "the OpenTelemetry SDK is not installed (opentelemetry)"
        host.run(1, "go")
        result = host.read()
        assert (result["output"], result["spans_exported"], result["spans_lost"]) == ('"go"', 0, 0)


@pytest.mark.e2e
def test_an_agent_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    """`unusable`, with the exception and its line."""
    told = "loading it raised ModuleNotFoundError at agent.py:1: No module named 'no_such_module'"
    with host_of(tmp_path, "http://127.0.0.1:9", agent="import no_such_module") as host:
        assert host.ready == {"op": "unusable", "error": told}


@pytest.mark.e2e
def test_spans_that_cannot_be_sent_are_lost_not_counted(tmp_path: Path) -> None:
    """Nobody listens: the result still comes, and says how many are missing."""
    with host_of(tmp_path, f"http://127.0.0.1:{free_port()}", OTEL_EXPORTER_OTLP_TIMEOUT="0.2") as host:
        host.run(1, "go")
        result = host.read()
        assert (result["state"], result["spans_exported"], result["spans_lost"]) == ("succeeded", 0, 1)


def test_it_names_attributes_as_everybody_does() -> None:
    """It cannot import the registry: it runs where we are not installed."""
    assert (span_ledger.ROLLOUT_ID, span_ledger.ATTEMPT_ID) == (attributes.ROLLOUT_ID, attributes.ATTEMPT_ID)
    assert span_ledger.COUNTED_SPAN == attributes.COUNTED_SPAN


def test_a_forked_process_marks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits the ledger, and nobody asks it for its count."""
    mark = Resource({attributes.COUNTED_SPAN: True})
    span = TracerProvider().get_tracer("t").start_span("work")
    assert isinstance(span, ReadableSpan)
    ledger = SpanLedger("http://gw")
    (sent,) = ledger.mark([span], mark)
    assert sent.name == "work" and sent.resource == span.resource.merge(mark)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert list(ledger.mark([span], mark)) == [span]


@pytest.mark.slow
def test_the_ledger_is_bounded() -> None:
    """Spans of episodes that nobody asks for do not fill the memory."""
    ledger = SpanLedger("http://gw")
    for number in range(ledger.MAX_EPISODES + 10):
        context = type("Context", (), {"trace_id": number + 1, "span_id": 1})()
        ledger.note([type("Span", (), {"attributes": None, "context": context})()], is_exported=True)
    assert ledger.close_episode(format(1, "032x")) == (0, 0)
    assert ledger.close_episode(format(ledger.MAX_EPISODES + 10, "032x")) == (1, 0)


@pytest.mark.parametrize(
    ("endpoint", "is_ours"),
    [
        ("http://127.0.0.1:4318/v1/traces", True),
        ("http://127.0.0.1:4318", True),
        ("http://127.0.0.1:43180/v1/traces", False),
        ("http://127.0.0.1:4318.example/v1/traces", False),
        (None, True),
    ],
)
def test_an_exporter_is_ours_by_its_whole_endpoint(endpoint: str | None, is_ours: bool) -> None:
    """Another port that begins alike is another's."""

    class Exporter:
        _endpoint = endpoint

    assert SpanLedger("http://127.0.0.1:4318/").is_ours(Exporter()) is is_ours
