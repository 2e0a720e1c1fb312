"""What a history costs: spans a second of CPU from OTLP requests to transitions, without Kafka, and memory.

    PYTHONPATH=. python benchmarks/told_calls.py [--spans 90000] [--render examples/calculator/policy]

Each trace is an agent with four calls of a model, whose prompts begin with 2 kB and grow, and four tools. Without
`--render` every call is said to be rendered, so that what is measured is reading, assembly and credit.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.streams.make import RUN_HASH, TOPICS, agent_span, config, otlp, span, tool_span
from tracegrad.compose.history.history_model import load_history_renderer
from tracegrad.compose.history.rendering import ExactIdRules
from tracegrad.consumers.history.recorded import RecordedEpisodes
from tracegrad.consumers.history.refold import Refold
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.tokens import CallTokens
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.assemble.fold import Assemble
from tracegrad.streams.assemble.told_calls import ToldCalls
from tracegrad.streams.config import HistoryConfig, SelectConfig
from tracegrad.streams.folds import build_fold
from tracegrad.streams.normalize.told.read_call import joined

_SPANS_A_TRACE = 9
_TRACES = 200
_QUESTION = "what is 12 times 7 minus 5? " * 70
_HISTORY = HistoryConfig(models=("*",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=90_000)
    parser.add_argument("--render", type=Path)
    asked = parser.parse_args()
    refold, requests, topic = _refold(asked.render), [*map(_request, range(_TRACES))], TOPICS.name(Topic.OTLP_SPANS)
    num_episodes, began_s = 0, time.process_time()
    for number in range(asked.spans // _SPANS_A_TRACE):
        of_trace = requests[number % _TRACES]
        value = of_trace.replace((number % _TRACES + 1).to_bytes(16), (number + 1).to_bytes(16))
        record = Record(
            topic=topic, partition=0, offset=number, key=None, value=value, timestamp_ms=1_000 + 20 * number
        )
        num_episodes += sum(output.topic is Topic.EPISODES for output in refold.fold(record))
    num_episodes += sum(output.topic is Topic.EPISODES for output in refold.finish())
    took_s = time.process_time() - began_s
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rate = num_episodes * _SPANS_A_TRACE / took_s
    print(f"{num_episodes} episodes, {rate:.0f} spans/s of CPU, at most {most_mib:.0f} MiB")


def _refold(model: Path | None) -> Refold:
    rules = msgspec.structs.replace(config(), history=_HISTORY, select=SelectConfig(capture_all=True))
    tokens: Any = lambda call: CallTokens(reason=Reason.TEXT)  # noqa: E731
    if model is not None:
        tokens = load_history_renderer(model.resolve(), ExactIdRules()).tokens
    folds: Any = {stage: build_fold(stage, rules, TOPICS) for stage in (Stage.NORMALIZE, Stage.CREDIT)}
    told_calls = ToldCalls(_HISTORY, rules.policies[0], RUN_HASH, {}, tokens, joined)
    folds[Stage.ASSEMBLE] = Assemble(rules, TOPICS, told_calls=told_calls)
    return Refold(folds, lambda *_: (), lambda episode, _: episode, TOPICS, RecordedEpisodes())


def _request(number: int) -> bytes:
    trace = f"{number + 1:032x}"
    messages: list[Any] = [{"role": "user", "content": f"{number} {_QUESTION}"}]
    spans = [agent_span(trace, 1, "clerk", at=1)]
    for turn in range(4):
        answer = {"role": "assistant", "content": f"{turn} of {number}"}
        response = {"id": f"r-{number}-{turn}", "choices": [{"message": answer, "finish_reason": "stop"}]}
        told: dict[str, Any] = {
            "openinference__span__kind": "LLM",
            "input__value": json.dumps({"model": "gpt-4o", "messages": messages}),
            "output__value": json.dumps(response),
        }
        spans += [span(trace, 10 + turn, "chat", parent=1, at=10 + turn, **told), tool_span(trace, 20 + turn, parent=1)]
        messages += [answer, {"role": "user", "content": "go on"}]
    request = ExportTraceServiceRequest.FromString(otlp(*spans))
    request.resource_spans[0].scope_spans[0].scope.name = "openinference.instrumentation.openai"
    return bytes(request.SerializeToString())


if __name__ == "__main__":
    main()
