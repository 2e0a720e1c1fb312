"""Small OTLP requests for tests."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

TRACE = bytes.fromhex("ab12cd340000000000000000000000ff")
OTHER_TRACE = bytes.fromhex("ab12cd340000000000000000000000ee")


def request_of(
    spans: Iterable[tuple[bytes, int]], *, service: str = "agent", payload: str = ""
) -> ExportTraceServiceRequest:
    """One resource and scope with spans (trace id, number), each with a payload attribute."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(KeyValue(key="service.name", value=AnyValue(string_value=service)))
    scope = resource.scope_spans.add()
    scope.scope.name = "tests"
    for trace_id, number in spans:
        span = scope.spans.add(trace_id=trace_id, span_id=number.to_bytes(8, "big"), name=f"span {number}")
        if payload:
            span.attributes.append(KeyValue(key="payload", value=AnyValue(string_value=payload)))
    return request


def span_ids(values: Iterable[bytes]) -> list[tuple[str, int]]:
    """(trace id, number) of every span in these records, sorted."""
    return sorted(
        (span.trace_id.hex(), int.from_bytes(span.span_id, "big"))
        for value in values
        for resource in ExportTraceServiceRequest.FromString(value).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )
