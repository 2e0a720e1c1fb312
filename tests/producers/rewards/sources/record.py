"""Records what the real servers answer: `python -m tests.producers.rewards.sources.record NAME URL`.

In: a server that somebody has just started, of an environment of its own, with nothing in it:

    pip install mlflow          && mlflow server --backend-store-uri sqlite:///m.db --port 5511
    pip install arize-phoenix   && PHOENIX_WORKING_DIR=. PHOENIX_PORT=6611 phoenix serve

Out: its fixture. A conversation of two spans is exported over OTLP and rated by the server's own API; it is read by our
reader, rated anew, and read again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx
import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.producers.rewards.sources.replay import ANSWER, SESSION, TRACE, Exchange, Recording, save
from tracegrad.producers.rewards.config import SourceConfig, SourceKind
from tracegrad.producers.rewards.sources import mlflow, phoenix
from tracegrad.producers.rewards.sources.found import Ask, Found, Query

T = TypeVar("T")
NAMES = ("thumb", "stars", "tone")
SPANS = ("00000000000000a1", "00000000000000a2")
SINCE = datetime(2020, 1, 1, tzinfo=UTC)


def exported() -> bytes:
    """An agent's span, and below it a call's."""
    request, now = ExportTraceServiceRequest(), time.time_ns()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number, id_ in enumerate(SPANS):
        span = spans.add(
            trace_id=bytes.fromhex(TRACE),
            span_id=bytes.fromhex(id_),
            parent_span_id=bytes.fromhex(SPANS[0]) * number,
            name=("agent", "chat")[number],
            start_time_unix_nano=now - 10**9,
            end_time_unix_nano=now,
        )
        attributes = {"session.id": SESSION}
        if number:
            attributes |= {"openinference.span.kind": "LLM", "output.value": json.dumps({"id": ANSWER})}
        for key, text in attributes.items():
            span.attributes.add(key=key).value.string_value = text
    return bytes(request.SerializeToString())


def rate_phoenix(http: httpx.Client, number: int) -> None:
    """Three people; the second time one of them changes her mind, and one comes."""
    result = {"score": 1 - number, "label": "up", "explanation": "good"}
    rated: dict[str, list[dict[str, Any]]] = {
        "span": [{"span_id": SPANS[1], "name": "thumb", "annotator_kind": "HUMAN", "result": result}],
        "trace": [{"trace_id": TRACE, "name": "stars", "annotator_kind": "HUMAN", "result": {"score": 4}}],
        "session": [{"session_id": SESSION, "name": "tone", "annotator_kind": "LLM", "result": {"label": "kind"}}],
    }
    rated["span"] += [{"span_id": SPANS[0], "name": "stars", "annotator_kind": "CODE", "result": {"score": 2}}] * number
    for kind, data in rated.items():
        http.post(f"/v1/{kind}_annotations", params={"sync": "true"}, json={"data": data}).raise_for_status()


def rate_mlflow(http: httpx.Client, number: int) -> None:
    """Four people, and one who knows the truth; the second time one changes her mind, and another is overridden."""
    path = f"/api/3.0/mlflow/traces/tr-{TRACE}/assessments"

    def say(name: str, **more: Any) -> str:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        source = {"source_type": "HUMAN", "source_id": "ann"}
        said = {"assessment_name": name, "trace_id": f"tr-{TRACE}", "source": source, "create_time": now}
        answer = http.post(path, json={"assessment": said | {"last_update_time": now} | more})
        return str(answer.raise_for_status().json()["assessment"]["assessment_id"])

    if number == 0:
        changed.append(say("thumb", feedback={"value": True}, rationale="good", span_id=SPANS[1]))
        changed.append(say("stars", feedback={"value": 4}))
        say("tone", feedback={"value": "kind"}, metadata={"mlflow.trace.session": SESSION})
        say("truth", expectation={"value": 5})
        return
    anew = {"assessment_id": changed[0], "trace_id": f"tr-{TRACE}", "feedback": {"value": False}}
    mask = {"assessment": anew, "update_mask": "feedback"}
    http.patch(f"{path}/{changed[0]}", json=mask).raise_for_status()
    say("stars", feedback={"value": 5}, overrides=changed[1])


changed: list[str] = []
RATERS: dict[str, tuple[Any, Callable[[httpx.Client, int], None]]] = {
    "phoenix": (phoenix, rate_phoenix),
    "mlflow": (mlflow, rate_mlflow),
}


def version(name: str, http: httpx.Client) -> str:
    """As the server says it."""
    if name == "mlflow":
        return f"mlflow {http.get('/version').text}"
    return f"arize-phoenix {http.get('/v1/projects').headers['x-phoenix-server-version']}"


async def read(vendor: Any, source: SourceConfig, ask: Ask) -> None:
    """One reading, with the spans of what is about a span."""
    async for page in vendor.scores(ask, source, NAMES, SINCE):
        for one in page:
            if isinstance(one, Found) and one.span_id and one.trace_id:
                print(one, await vendor.answer_of(ask, source, one))
            else:
                print(one)


def record(name: str, url: str) -> None:
    """Fills the server, reads it twice, and writes what it said."""
    vendor, rate = RATERS[name]
    source = SourceConfig(kind=SourceKind(name), url="http://127.0.0.1:1")
    rounds: list[list[Exchange]] = []
    with httpx.Client(base_url=url, timeout=30, headers={"x-mlflow-experiment-id": "0"}) as http:

        async def ask(answer: type[T], path: str, *, query: Query = (), body: Mapping[str, Any] | None = None) -> T:
            got = http.request("GET" if body is None else "POST", path, params=list(query), json=body)
            raw = msgspec.Raw(got.raise_for_status().content)
            rounds[-1].append(Exchange(path, list(query), dict(body) if body is not None else None, raw))
            return msgspec.json.decode(raw, type=answer)

        sent = http.post("/v1/traces", content=exported(), headers={"content-type": "application/x-protobuf"})
        sent.raise_for_status()
        time.sleep(3)
        for number in range(2):
            rate(http, number)
            time.sleep(1)
            rounds.append([])
            asyncio.run(read(vendor, source, ask))
        save(name, Recording(made_by=version(name, http), source=source, rounds=rounds))


if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2])
