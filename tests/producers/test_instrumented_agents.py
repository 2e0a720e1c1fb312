"""Agents with the published openai and Starlette instrumentations, traced by environment alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.producers.rig import Rig, free_port, is_healthy, until
from tracegrad.schemas.calls import CALLS, CallRecord, Purpose
from tracegrad.schemas.rollouts import RolloutState
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.e2e

AGENT = """
import json
from openai import AsyncOpenAI
from opentelemetry import trace

client = AsyncOpenAI()
tracer = trace.get_tracer("agent")
CALC = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]

async def answer(question):
    messages = [{"role": "user", "content": question}]
    with tracer.start_as_current_span("invoke_agent"):
        for _ in range(3):
            got = await client.chat.completions.create(model="policy", messages=messages, tools=CALC)
            message = got.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                with tracer.start_as_current_span("execute_tool calc"):
                    result = str(eval(json.loads(call.function.arguments)["expr"]))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

async def solve(task):
    return await answer(task["input"])
"""
SERVER = """
from agent import answer
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def ask(request):
    question = (await request.body()).decode()
    return PlainTextResponse(str(await answer(question)))

async def health(request):
    return PlainTextResponse("ok")

app = Starlette(routes=[Route("/ask", ask, methods=["POST"]), Route("/health", health)])
"""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """The gateways."""
    with Rig() as rig:
        rig.start_gateways()
        yield rig


def test_calls_and_spans_of_a_callable_join_by_its_trace(rig: Rig, tmp_path: Path) -> None:
    """The episode id is the trace id; each call has a `traceparent` in it; spans received are those counted."""
    (tmp_path / "agent.py").write_text(AGENT)
    env = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain"}
    rig.start_runner(callable="agent.py:solve", cwd=str(tmp_path), env=env)
    rollouts = [rig.request(input=f"what is {number} plus 30?", rewards_awaited=()) for number in range(12, 20)]
    for rollout in rollouts:
        event = rig.final(rollout)
        assert event.state is RolloutState.SUCCEEDED
        episode = rollout + event.attempt_id
        spans = {
            span.span_id.hex(): span
            for service, span in rig.spans()
            if service == "agent" and span.trace_id.hex() == episode
        }
        assert (len(spans), event.spans_lost) == (event.spans_exported, 0)
        calls = [call for call in rig.calls(rollout) if isinstance(call, CallRecord)]
        assert calls
        for call in calls:
            assert call.trace_id == episode
            assert call.parent_span_id in spans
        roots = [span for span in spans.values() if span.parent_span_id.hex() not in spans]
        assert [root.name for root in roots] == ["invoke_agent"]


async def test_a_server_with_many_requests_at_once_gives_an_episode_each(rig: Rig, tmp_path: Path) -> None:
    """Eight questions at once to one process started by environment only: eight traces, each with its own calls."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "server.py").write_text(SERVER)
    port = free_port()
    env = {
        **os.environ,
        "OPENAI_BASE_URL": f"{rig.llm_url}/v1",
        "OPENAI_API_KEY": "none",
        "OTEL_EXPORTER_OTLP_ENDPOINT": rig.otlp_url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_SERVICE_NAME": "server",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain",
    }
    instrument = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
    command = [sys.executable, "-c", instrument, sys.executable, "-m", "uvicorn", "server:app", "--port", str(port)]
    server = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await asyncio.to_thread(until, lambda: is_healthy(f"http://127.0.0.1:{port}"), 90.0)
        rig.engine.delay_s = 0.2
        questions = [f"what is {number} plus 50?" for number in range(21, 29)]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            answers = await asyncio.gather(*(client.post("/ask", content=question) for question in questions))
        assert [answer.status_code for answer in answers] == [200] * 8
        await asyncio.to_thread(until, lambda: len(served_by(rig)) == 8)
    finally:
        rig.engine.delay_s = 0.0
        server.terminate()
        server.wait(20)
    calls = defaultdict(list)
    for value in rig.values(Topic.LLM_CALLS):
        call = CALLS.decode(value)
        if isinstance(call, CallRecord) and call.rollout_id is None:
            calls[call.trace_id].append(call)
    assert len(calls) == 8
    assert served_by(rig) == set(calls)
    for trace, own in calls.items():
        spans = {span.span_id.hex() for service, span in rig.spans() if span.trace_id.hex() == trace}
        assert all(call.purpose is Purpose.UNKNOWN and call.parent_span_id in spans for call in own)
        kinds = [call.splice.kind for call in sorted(own, key=lambda call: call.started_at_ns)]
        assert kinds == ["first"] + ["extended"] * (len(own) - 1)


def served_by(rig: Rig) -> set[str]:
    """Traces of the server's finished agent spans."""
    return {span.trace_id.hex() for service, span in rig.spans() if service == "server" and span.name == "invoke_agent"}
