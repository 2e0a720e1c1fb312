"""The program of somebody who knows nothing of training: the calculator agent, its model calls traced by OpenInference.

    python history_agent.py TASKS.jsonl FIRST STEP [--ids]      # every STEP-th task from FIRST on, eight at once

Runs where tests/frameworks/requirements/openai.txt is installed, with examples/calculator on PYTHONPATH.
OPENAI_BASE_URL and OTEL_EXPORTER_OTLP_ENDPOINT tell where its model is and where its spans go. `--ids` asks vLLM for
the token ids of each call and their logprobs.
"""

import asyncio
import itertools
import json
import sys
from functools import partial
from pathlib import Path

from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

AT_ONCE = 8


async def work(solve, tasks):
    """One task after the other, until none is left."""
    for task in tasks:
        await solve(task)


async def main():
    """Each of its tasks once."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    OpenAIInstrumentor().instrument()
    from agent import client, solve

    file, first, step, *ids = sys.argv[1:]
    if ids:
        asked = {"logprobs": True, "temperature": 1.0, "extra_body": {"return_token_ids": True}}
        client.chat.completions.create = partial(client.chat.completions.create, **asked)
    lines = Path(file).read_text(encoding="ascii").splitlines()
    tasks = iter([json.loads(line) for line in itertools.islice(lines, int(first), None, int(step))])
    await asyncio.gather(*(work(solve, tasks) for _ in range(AT_ONCE)))
    provider.shutdown()


asyncio.run(main())
