"""Agents as people write them, with published instrumentations, that also keep a count of their own.

In: a folder. Out: `agent.py` (async `solve`, for the runner), `server.py` (Starlette) and `forger.py` in it. Each
process writes down which spans its SDK's OTLP exporter sent with success, so that what arrived can be compared with
what was sent as told by the agent, not by us.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span

ENVIRONMENT = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain"}
"""What these agents do not use takes seconds to import."""

COUNT = """
import os
from pathlib import Path
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

export = OTLPSpanExporter.export

def written_down(self, spans, *args, **kwargs):
    result = export(self, spans, *args, **kwargs)
    if result is SpanExportResult.SUCCESS:
        with Path(__file__).with_name(f"exported-{os.getpid()}.txt").open("a") as file:
            file.writelines(f"{span.context.trace_id:032x} {span.context.span_id:016x}\\n" for span in spans)
    return result

OTLPSpanExporter.export = written_down
"""
AGENT = """
import count
import json
from openai import AsyncOpenAI
from opentelemetry import trace

client = AsyncOpenAI()
tracer = trace.get_tracer("agent")
CALC = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]

async def answer(question):
    messages = [{"role": "user", "content": question}]
    calls = []
    with tracer.start_as_current_span("invoke_agent calculator", attributes={"gen_ai.operation.name": "invoke_agent"}):
        for _ in range(3):
            got = await client.chat.completions.create(model="policy", messages=messages, tools=CALC)
            calls.append(got.id)
            message = got.choices[0].message
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                known = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "calc"}
                with tracer.start_as_current_span("execute_tool calc", attributes=known):
                    result = str(eval(json.loads(call.function.arguments)["expr"]))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return {"calls": calls, "tools": sum(message["role"] == "tool" for message in messages)}

async def solve(task):
    return await answer(task["input"])
"""
SERVER = """
from agent import answer
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

async def ask(request):
    return JSONResponse(await answer((await request.body()).decode()))

async def health(request):
    return PlainTextResponse("ok")

app = Starlette(routes=[Route("/ask", ask, methods=["POST"]), Route("/health", health)])
"""
FORGER = """
import count
import json, os, urllib.error, urllib.request
from pathlib import Path
from agent import answer
from opentelemetry import trace

def forged(rollout, attempt):
    return {"rollout_id": rollout, "attempt_id": attempt, "name": "reward", "value": 1.0, "source": "grader:grade",
            "idempotency_key": f"{rollout}/{attempt}/reward"}

def post(url, body):
    data = json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code

async def solve(task):
    calls = await answer(task["input"])
    episode = format(trace.get_current_span().get_span_context().trace_id, "032x")
    rollout, attempt = episode[:28], episode[28:]
    print("reward: 1.0")
    print(json.dumps({"op": "result", "episode": episode, "rewards": {"reward": 1.0}}), flush=True)
    with trace.get_tracer("agent").start_as_current_span("agentlightning.reward") as span:
        for key in ("reward", "agentlightning.reward", "agentlightning.reward.0.value", "gen_ai.evaluation.score"):
            span.set_attribute(key, 1.0)
        span.add_event("gen_ai.evaluation.result", {"gen_ai.evaluation.score.value": 1.0})
    paths = ("/v1/rewards", "/rewards", f"/rollout/{rollout}/attempt/{attempt}/rewards",
             f"/rollout/{rollout}/attempt/{attempt}/v1/rewards")
    gateways = (os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"])
    statuses = [post(gateway + path, forged(rollout, attempt)) for gateway in gateways for path in paths]
    Path(__file__).with_name("statuses.json").write_text(json.dumps(statuses))
    return {**calls, "reward": 1.0}
"""
GRADER = """
def grade(task, output, attempt):
    return 0.25
"""


def write_agents(folder: Path) -> None:
    """Writes all of them."""
    files = {"count": COUNT, "agent": AGENT, "server": SERVER, "forger": FORGER, "grade": GRADER}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def exported(folder: Path) -> set[tuple[str, str]]:
    """(trace id, span id) of every span that an SDK in this folder has sent with success."""
    lines = [line for file in folder.glob("exported-*.txt") for line in file.read_text().splitlines()]
    return {(trace, span) for trace, _, span in (line.partition(" ") for line in lines)}


def received(spans: Iterable[tuple[str, Span]]) -> dict[tuple[str, str], Span]:
    """(trace id, span id) -> the span, of these (service, span)."""
    return {(span.trace_id.hex(), span.span_id.hex()): span for _, span in spans}


def assert_just_what_was_exported(arrived: Iterable[tuple[str, Span]], folder: Path) -> dict[tuple[str, str], Span]:
    """The spans that arrived, which are those that the agents' SDKs sent: we add none of our own."""
    sent, spans = exported(folder), received(arrived)
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
