"""Agents with published instrumentations, and all that follows, in the product's own processes on real Kafka.

Only the engine is scripted. What the agents' SDKs say that they sent is compared with what lies on the topics.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.compose.run.traced_agents import (
    ENVIRONMENT,
    ancestors,
    assert_just_what_was_exported,
    received,
    write_agents,
)
from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.runner.rig import Rig, running_engine
from tests.serving import free_port, is_healthy, until
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.load import load
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.session import run_session
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord, Purpose
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, RolloutEvent
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(300)]

POLICY = Path(__file__).parents[3] / "examples" / "calculator" / "policy"
TRACEGRAD = (sys.executable, "-m", "tracegrad.compose.cli")
INSTRUMENT = str(Path(sys.executable).with_name("opentelemetry-instrument"))
TASKS = {f"sum-{number}": f"what is {number} plus 30?" for number in (12, 23, 34)} | {"forge": "what is 45 plus 30?"}
BOTH = """
import agent, forger

async def solve(task):
    return await (forger if task["id"] == "forge" else agent).solve(task)
"""
MEMBERS = 2


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """What it is asked it answers by `chain_policy`."""
    yield ScriptedEngine()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the agents lie and keep their count."""
    write_agents(tmp_path)
    (tmp_path / "both.py").write_text(BOTH)
    lines = [json.dumps({"id": name, "input": text}) for name, text in TASKS.items()]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def topics_of(run_dir: Path, broker: str) -> Rig:
    """Reads the topics of a run."""
    return Rig(KafkaLog(broker), Wiring(RunDir.open(run_dir)).topics)


def episodes_of(topics: Rig) -> list[Episode]:
    """The records of `episodes`."""
    return [EPISODES.decode(value) for value in topics.values(Topic.EPISODES)]


def settings_of(folder: Path, engine_url: str, broker: str) -> Any:
    """A run that takes each task once; its grader finds every answer worth a quarter."""
    flags = {
        "run": "traced",
        "agent.callable": str(folder / "both.py:solve"),
        "agent.cwd": str(folder),
        "agent.env": ENVIRONMENT,
        "tasks.file": str(folder / "tasks.jsonl"),
        "tasks.group_size": MEMBERS,
        "reward.grader": str(folder / "grade.py:grade"),
        "policy.model": str(POLICY),
        "engine.url": engine_url,
        "kafka.bootstrap_servers": broker,
        "kafka.topic_prefix": f"t{uuid.uuid4().hex[:12]}.",
        "trainer.steps": len(TASKS),
        "trainer.groups_per_step": 1,
    }
    return load(None, environ={}, flags=flags, for_training=True)


def test_a_run_keeps_all_spans_of_its_agents_and_no_reward_of_theirs(
    folder: Path, broker: str, engine: ScriptedEngine
) -> None:
    """Span ids as exported, tools under their agents, episodes complete; what an agent prints, exports and posts as
    its reward is worth nothing."""
    with running_engine(engine) as url:
        status = run_session(settings_of(folder, url, broker), folder / "run", Show(io.StringIO()), for_training=True)
    assert status == 0
    topics = topics_of(folder / "run", broker)
    spans = assert_just_what_was_exported(topics.spans(), folder)
    episodes = episodes_of(topics)
    assert len(episodes) == MEMBERS * len(TASKS)
    assert {episode.closed_by for episode in episodes} == {"complete"}
    events = [ROLLOUT_EVENTS.decode(value) for value in topics.values(Topic.ROLLOUT_EVENTS)]
    ends = {event.rollout_id: event for event in events if event.is_final}
    for episode in episodes:
        rollout = episode.rollout_id or ""
        calls = [call for call in topics.calls(rollout) if isinstance(call, CallRecord)]
        assert_episode_has_its_trace(episode, ends[rollout], calls, spans)
    assert sum(episode.num_tools for episode in episodes) > 0

    assert "agentlightning.reward" in {span.name for span in spans.values()}
    statuses = json.loads((folder / "statuses.json").read_text())
    assert len(statuses) == 8 and set(statuses) <= {404, 405}
    rewards = [REWARDS.decode(value) for value in topics.values(Topic.REWARDS)]
    assert [(reward.value, reward.source) for reward in rewards] == [(0.25, "grader:grade")] * len(episodes)
    assert {episode.reward for episode in episodes} == {0.25}
    for value in topics.values(Topic.TRANSITIONS):
        summary, rows = decode_group(value)
        assert [member.reward for member in summary.members] == [0.25] * MEMBERS
        assert {turn.return_ for row in rows for turn in row.turns} == {0.25}


def assert_episode_has_its_trace(
    episode: Episode, event: RolloutEvent, calls: list[CallRecord], spans: dict[tuple[str, str], Span]
) -> None:
    """All spans of its trace arrived, its calls hang under some of them, and its tools under the agent's."""
    trace = f"{episode.rollout_id}{episode.attempt_id}"
    own = [span for (trace_id, _), span in spans.items() if trace_id == trace]
    assert (len(own), event.spans_lost) == (event.spans_exported, 0)
    assert len(calls) == len(episode.calls) > 0
    assert {(call.trace_id, (trace, call.parent_span_id or "") in spans) for call in calls} == {(trace, True)}
    assert "invoke_agent calculator" in {span.name for span in own if not ancestors(span, spans)}
    tools = [span for span in own if span.name == "execute_tool calc"]
    assert len(tools) == episode.num_tools
    assert all(ancestors(tool, spans) == ["invoke_agent calculator"] for tool in tools)


async def test_a_server_with_eight_requests_at_once_gives_eight_episodes(
    folder: Path, broker: str, engine: ScriptedEngine
) -> None:
    """`tracegrad up` in one terminal, a Starlette agent with the variables of `tracegrad env` in another."""
    engine.delay_s = 3.0
    with running_engine(engine) as url, (folder / "up.jsonl").open("wb") as out, (folder / "up.err").open("wb") as err:
        options = [f"engine.url={url}", f"kafka.topic_prefix=t{uuid.uuid4().hex[:12]}."]
        sets = [argument for option in options for argument in ("--set", option)]
        command = [*TRACEGRAD, "up", "--run", "mine", "--model", str(POLICY), "--bootstrap-servers", broker, "--json"]
        up = subprocess.Popen([*command, *sets], cwd=folder, stdout=out, stderr=err)
        try:
            run_dir = folder / "runs" / "mine"
            await asyncio.to_thread(until, lambda: b"OPENAI_BASE_URL" in (folder / "up.jsonl").read_bytes(), 120.0)
            made = await ask_all_at_once(folder, printed_variables(folder), lambda: topics_of(run_dir, broker))
            topics = topics_of(run_dir, broker)
            await asyncio.to_thread(until, lambda: len(episodes_of(topics)) == len(made))
        finally:
            up.send_signal(signal.SIGINT)
            status = up.wait(60)
    assert status == 130
    spans = assert_just_what_was_exported(topics.spans(), folder)
    calls = [call for call in map(LLM_CALLS.decode, topics.values(Topic.LLM_CALLS)) if isinstance(call, CallRecord)]
    firsts = [call for call in calls if call.splice.kind == "first"]
    assert len(firsts) == 8 and {call.purpose for call in calls} == {Purpose.UNKNOWN}
    assert max(call.started_at_ns for call in firsts) < min(call.ended_at_ns for call in firsts), "not all at once"
    episodes = episodes_of(topics)
    assert sorted(tuple(call.call_id for call in episode.calls) for episode in episodes) == sorted(made)
    assert {(episode.closed_by, episode.rollout_id) for episode in episodes} == {("idle", None)}
    for episode in episodes:
        kinds = [call.splice.kind for call in episode.calls]
        assert kinds == ["first"] + ["extended"] * (len(kinds) - 1)
    tools = [span for span in spans.values() if span.name == "execute_tool calc"]
    assert all(ancestors(tool, spans)[0] == "invoke_agent calculator" for tool in tools)
    assert sum(episode.num_tools for episode in episodes) == len(tools) > 0
    assert {call.joined_by for episode in episodes for call in episode.calls} == {"response_id"}
    told = (folder / "up.jsonl").read_text()
    assert all(f"first {what}" in told for what in ("span", "call", "episode")), told


def printed_variables(folder: Path) -> dict[str, str]:
    """What `tracegrad env` gives an agent."""
    command = [*TRACEGRAD, "env", "--json", "--run", "mine"]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout
    variables: dict[str, str] = json.loads(printed)
    return variables


async def ask_all_at_once(folder: Path, variables: dict[str, str], topics: Any) -> list[tuple[str, ...]]:
    """Eight questions at once to one server process; the call ids that each of them made, told by the agent."""
    port = free_port()
    before = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_"))}
    command = [INSTRUMENT, sys.executable, "-m", "uvicorn", "server:app", "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=before | variables, stdout=log, stderr=log)
    try:
        await asyncio.to_thread(until, lambda: is_healthy(f"http://127.0.0.1:{port}"), 90.0)
        questions = [f"what is {number} plus 50?" for number in range(21, 29)]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90) as client:
            answers = await asyncio.gather(*(client.post("/ask", content=question) for question in questions))

        def requests_seen() -> int:
            return sum(span.name == "POST /ask" for span in received(topics().spans()).values())

        # A signal ends uvicorn without the SDK's last flush, so the spans that end last are waited for.
        await asyncio.to_thread(until, lambda: requests_seen() == len(questions))
    finally:
        server.terminate()
        server.wait(30)
    assert [answer.status_code for answer in answers] == [200] * 8, (folder / "server.log").read_text()[-3000:]
    return [tuple(answer.json()["calls"]) for answer in answers]
