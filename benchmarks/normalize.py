"""What reading spans costs: spans a second of CPU in normalize's fold, without Kafka.

    PYTHONPATH=. python benchmarks/normalize.py [--rounds 9]

Requests of a hundred spans each, as SDKs batch them: with nothing that anybody reads (of an HTTP client), and of model
calls by OpenTelemetry's conventions; and the recordings of real frameworks (`tests/frameworks/fixtures`). The best of
some rounds, by the process's CPU time: on a busy machine compare within one run only. Facts are encoded, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.frameworks.fixture import fixtures, load
from tests.streams.make import RUN_HASH, TOPICS, call_id, config, otlp, signed_by, span
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.folds import build_fold

_TRACE = "ab" * 16
_HTTP = {
    "http__request__method": "POST",
    "url__full": "http://127.0.0.1/v1/chat/completions",
    "server__address": "127.0.0.1",
    "server__port": 80,
    "http__response__status_code": 200,
    "network__protocol__version": "1.1",
}
_CHAT = {
    "gen_ai__operation__name": "chat",
    "gen_ai__request__model": "policy",
    "gen_ai__response__model": "policy",
    "gen_ai__system": "openai",
    "gen_ai__usage__input_tokens": 812,
    "gen_ai__usage__output_tokens": 96,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    plain = [span(_TRACE, n + 1, "POST", parent=n + 2, **_HTTP) for n in range(100)]
    ids = (call_id(f"{n:08}") for n in range(100))
    chats = [
        span(_TRACE, n + 1, "chat policy", parent=n + 2, gen_ai__response__id=name, **_CHAT)
        for n, name in enumerate(ids)
    ]
    recorded = [
        (recording.run_hash, record.value)
        for recording in map(load, fixtures())
        for record in recording.records
        if record.topic == Topic.OTLP_SPANS
    ]
    _measure("plain spans", [(RUN_HASH, otlp(*plain))] * 20, rounds)
    _measure("model calls", [(RUN_HASH, otlp(*chats))] * 20, rounds)
    _measure("recordings of frameworks", recorded, rounds)


def _measure(name: str, requests: Sequence[tuple[str, bytes]], rounds: int) -> None:
    folds = {run: build_fold(Stage.NORMALIZE, config(run_hash=run), TOPICS) for run, _ in requests}
    topic = TOPICS.name(Topic.OTLP_SPANS)
    records = [
        (folds[run], Record(topic=topic, partition=0, offset=offset, key=None, value=value, headers=signed_by(run)))
        for offset, (run, value) in enumerate(requests)
    ]
    num_spans = sum(map(_num_spans, (value for _, value in requests)))
    best_s = float("inf")
    for _ in range(rounds):
        began_s = time.process_time()
        for fold, record in records:
            fold.fold(record)
        best_s = min(best_s, time.process_time() - began_s)
    print(f"{name:26} {num_spans / best_s:9.0f} spans/s {best_s / num_spans * 1e6:6.1f} us CPU a span")


def _num_spans(value: bytes) -> int:
    request = ExportTraceServiceRequest.FromString(value)
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


if __name__ == "__main__":
    main()
