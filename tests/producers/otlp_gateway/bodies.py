"""Small OTLP requests for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.streams.make import otlp, span, spans_of

TRACE = bytes.fromhex("ab12cd340000000000000000000000ff")
OTHER_TRACE = bytes.fromhex("ab12cd340000000000000000000000ee")


def request_of(spans: Iterable[tuple[bytes, int]], *, payload: str = "") -> ExportTraceServiceRequest:
    """One resource and scope with spans (trace id, number), each with a payload attribute."""
    attributes: dict[str, Any] = {"payload": payload} if payload else {}
    made = ExportTraceServiceRequest()
    made.ParseFromString(otlp(*[span(trace_id.hex(), number, **attributes) for trace_id, number in spans]))
    made.resource_spans[0].scope_spans[0].scope.name = "tests"
    return made


def span_ids(values: Iterable[bytes]) -> list[tuple[str, int]]:
    """(trace id, number) of every span in these records, sorted."""
    return sorted((span.trace_id.hex(), int.from_bytes(span.span_id, "big")) for _, span in spans_of(values))
