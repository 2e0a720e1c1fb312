"""What an OTLP request holds, for those who look at it: services and their spans."""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad.schemas.attributes import SERVICE_NAME

__all__ = ["spans_by_service"]


def spans_by_service(request: ExportTraceServiceRequest) -> Iterator[tuple[str, list[Span]]]:
    """The spans of each resource, with its service; an empty name when it does not say."""
    for resource in request.resource_spans:
        pairs = resource.resource.attributes
        service = next((pair.value.string_value for pair in pairs if pair.key == SERVICE_NAME), "")
        yield service, [span for scope in resource.scope_spans for span in scope.spans]
