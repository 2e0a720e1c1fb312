"""Agents with the published openai and Starlette instrumentations, traced by environment alone.

What they did is followed to the end: the raw topics that the gateways and the runner wrote go through the folds.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.producers.rig import RUN_HASH, Rig, free_port, is_healthy, until
from tests.producers.traced_agents import exported, write_agents
from tests.streams.make import Streams, config
from tracegrad.compose.config import load
from tracegrad.compose.run_dir import Endpoints, RunDir
from tracegrad.schemas.calls import CALLS, CallRecord, Purpose
from tracegrad.schemas.episodes import EPISODES, Episode
from tracegrad.schemas.rollouts import REWARDS, RolloutState
from tracegrad.schemas.topics import Topic
from tracegrad.schemas.transitions import decode_group
from tracegrad.streams.config import Select

pytestmark = pytest.mark.e2e

TRACEGRAD, INSTRUMENT = (
    str(Path(sys.executable).with_name(name)) for name in ("tracegrad", "opentelemetry-instrument")
)
GATEWAY = "tracegrad-llm-gateway"
RUNNER_ENV = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain"}


@pytest.fixture
def rig() -> Iterator[Rig]:
    """The gateways, on topics of their own."""
    with Rig() as rig:
        rig.start_gateways(is_traced=True)
        yield rig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the agents lie and keep their count."""
    write_agents(tmp_path)
    return tmp_path


def received(rig: Rig) -> dict[tuple[str, str], Span]:
    """(trace id, span id) -> the span, of all that arrived less the gateway's own."""
    return {
        (span.trace_id.hex(), span.span_id.hex()): span
        for service, span in rig.spans()
        if service and service != GATEWAY
    }


def assert_just_what_was_exported(rig: Rig, folder: Path) -> dict[tuple[str, str], Span]:
    """The spans on the log, which are those that the agents' SDKs sent."""
    until(lambda: any(service == GATEWAY for service, _ in rig.spans()))
    sent, spans = exported(folder), received(rig)
    assert sent and sent == spans.keys()
    return spans


def ancestors(span: Span, spans: dict[tuple[str, str], Span]) -> list[str]:
    """The names of the spans that it hangs under."""
    names: list[str] = []
    parent = spans.get((span.trace_id.hex(), span.parent_span_id.hex()))
    while parent is not None:
        names.append(parent.name)
        parent = spans.get((parent.trace_id.hex(), parent.parent_span_id.hex()))
    return names


def folded(rig: Rig) -> Streams:
    """What the three stages make of the raw topics, with every silent episode closed."""
    streams = Streams(config(run_hash=RUN_HASH, idle_s=10.0, select=Select(capture_all=True)))
    for topic in (Topic.LLM_CALLS, Topic.OTLP_SPANS, Topic.REWARDS, Topic.ROLLOUT_EVENTS):
        for record in rig.memory.records(rig.topics.name(topic)):
            streams.append(topic, record.value, record.key)
    streams.tick(0.0)
    streams.tick(9.0)
    assert not [episode for episode in episodes(streams) if episode.closed_by == "idle"], "expected patience"
    streams.tick(11.0)
    return streams


def episodes(streams: Streams) -> list[Episode]:
    """The records of `episodes`."""
    return [EPISODES.decode(value) for value in streams.values(Topic.EPISODES)]


def test_calls_and_spans_of_a_callable_join_by_its_trace(rig: Rig, folder: Path) -> None:
    """Each call has a `traceparent` in the episode's trace; the spans on the log are those exported; tools hang under
    their agent."""
    rig.start_runner(callable="agent.py:solve", cwd=str(folder), env=RUNNER_ENV)
    rollouts = [rig.request(input=f"what is {number} plus 30?", rewards_awaited=()) for number in range(12, 20)]
    events = {rollout: rig.final(rollout) for rollout in rollouts}
    spans = assert_just_what_was_exported(rig, folder)
    num_tools = 0
    for rollout, event in events.items():
        assert event.state is RolloutState.SUCCEEDED
        trace = rollout + event.attempt_id
        own = [span for (trace_id, _), span in spans.items() if trace_id == trace]
        assert (len(own), event.spans_lost) == (event.spans_exported, 0)
        calls = [call for call in rig.calls(rollout) if isinstance(call, CallRecord)]
        assert calls
        for call in calls:
            assert call.trace_id == trace
            assert (trace, call.parent_span_id) in spans
        assert [span.name for span in own if not ancestors(span, spans)] == ["invoke_agent calculator"]
        tools = [span for span in own if span.name == "execute_tool calc"]
        assert len(tools) == sum(len(call.tool_calls) for call in calls)
        assert all(ancestors(tool, spans) == ["invoke_agent calculator"] for tool in tools)
        num_tools += len(tools)
    assert num_tools
    found = {episode.rollout_id: episode for episode in episodes(folded(rig))}
    assert found.keys() == set(rollouts)
    assert sum(episode.num_tools for episode in found.values()) == num_tools
    assert {episode.closed_by for episode in found.values()} == {"complete"}


def test_a_reward_that_the_agent_prints_exports_or_posts_does_not_count(rig: Rig, folder: Path) -> None:
    """Its episode and its transitions are worth what the grader said, and nobody else."""
    rig.start_runner(callable="forger.py:solve", cwd=str(folder), env=RUNNER_ENV, grader="grade.py:grade")
    rollout = rig.request(input="what is 12 plus 30?")
    event = rig.final(rollout)
    assert event.state is RolloutState.SUCCEEDED
    spans = assert_just_what_was_exported(rig, folder)
    assert "agentlightning.reward" in {span.name for span in spans.values()}
    statuses = json.loads((folder / "statuses.json").read_text())
    assert len(statuses) == 8 and set(statuses) <= {404, 405}
    (reward,) = [REWARDS.decode(value) for value in rig.values(Topic.REWARDS)]
    assert (reward.value, reward.source) == (0.25, "grader:grade")
    streams = folded(rig)
    (episode,) = episodes(streams)
    assert (episode.closed_by, episode.reward, episode.rewards) == ("complete", 0.25, (reward,))
    assert not any(call.rewards for call in episode.calls)
    summary, rows = decode_group(streams.values(Topic.TRANSITIONS)[0])
    assert [member.reward for member in summary.members] == [0.25]
    turns = [turn for row in rows for turn in row.turns]
    assert turns and all((turn.return_, turn.reward_parts) == (0.25, ()) for turn in turns)


def variables(rig: Rig, folder: Path) -> dict[str, str]:
    """What `tracegrad env` prints for a run whose gateways are the rig's."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    settings = load(None, environ={}, flags={"run": "mine", "policy.model": str(folder / "model")})
    run_dir = RunDir.create(folder / "run", settings)
    nobody = "http://127.0.0.1:9"
    endpoints = Endpoints(
        bootstrap_servers="127.0.0.1:9", llm_url=rig.llm_url, otlp_endpoint=rig.otlp_url, engine_url=nobody
    )
    run_dir.write_start(settings, endpoints)
    command = [TRACEGRAD, "env", "--json", "--run-dir", str(run_dir.path)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found: dict[str, str] = json.loads(printed)
    return found


async def test_a_server_with_many_requests_at_once_gives_an_episode_each(rig: Rig, folder: Path) -> None:
    """Eight questions at once to one process, by `tracegrad env` only: eight episodes, each with the calls that its
    request made and no others."""
    port = free_port()
    before = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_"))}
    command = [INSTRUMENT, sys.executable, "-m", "uvicorn", "server:app", "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=before | variables(rig, folder), stdout=log, stderr=log)
    try:
        await asyncio.to_thread(until, lambda: is_healthy(f"http://127.0.0.1:{port}"), 90.0)
        rig.engine.delay_s = 0.5
        questions = [f"what is {number} plus 50?" for number in range(21, 29)]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            answers = await asyncio.gather(*(client.post("/ask", content=question) for question in questions))
        # A signal ends uvicorn without the SDK's last flush, so the spans that end last are waited for.
        await asyncio.to_thread(until, lambda: Counter(s.name for s in received(rig).values())["POST /ask"] == 8)
    finally:
        server.terminate()
        server.wait(30)
    assert [answer.status_code for answer in answers] == [200] * 8, (folder / "server.log").read_text()[-3000:]
    made = [tuple(answer.json()["calls"]) for answer in answers]
    spans = assert_just_what_was_exported(rig, folder)
    tools = [span for span in spans.values() if span.name == "execute_tool calc"]
    assert len(tools) == sum(answer.json()["tools"] for answer in answers) > 0
    assert all(ancestors(tool, spans)[0] == "invoke_agent calculator" for tool in tools)

    calls = [call for call in map(CALLS.decode, rig.values(Topic.LLM_CALLS)) if isinstance(call, CallRecord)]
    firsts = [call for call in calls if call.splice.kind == "first"]
    assert len(firsts) == 8 and {call.purpose for call in calls} == {Purpose.UNKNOWN}
    assert max(call.started_at_ns for call in firsts) < min(call.ended_at_ns for call in firsts), "not all at once"
    found = episodes(folded(rig))
    assert len(found) == 8
    assert sorted(tuple(call.call_id for call in episode.calls) for episode in found) == sorted(made)
    assert {(episode.closed_by, episode.rollout_id) for episode in found} == {("idle", None)}
    assert sum(episode.num_tools for episode in found) == len(tools)
    for episode in found:
        assert {call.joined_by for call in episode.calls} == {"response_id"}
        kinds = [call.splice.kind for call in episode.calls]
        assert kinds == ["first"] + ["extended"] * (len(kinds) - 1)
