"""OTLP requests, the values of `otlp_spans` and `otlp_logs`: bytes become a message, a message its spans.

In: bytes, of our gateway's or any Collector's. Out: protobuf messages; nothing is copied. Invariant: what can be read
of a damaged request is read, by every reader alike (schemas/otlp/salvage.py); bytes that are no request are an
UndecodableError (`undecodable`), never protobuf's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from ..attributes import SERVICE_NAME
from ..otlp.salvage import salvage
from ..otlp.signal import LOGS, TRACES


def decode_spans(value: bytes | None) -> ExportTraceServiceRequest:
    """Raises UndecodableError."""
    request: ExportTraceServiceRequest = salvage(TRACES, value).request
    return request


def decode_logs(value: bytes | None) -> ExportLogsServiceRequest:
    """Raises UndecodableError."""
    request: ExportLogsServiceRequest = salvage(LOGS, value).request
    return request


def spans_of(request: ExportTraceServiceRequest) -> Iterator[tuple[ResourceSpans, ScopeSpans, Span]]:
    """Every span with what wraps it."""
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield resource_spans, scope_spans, span


def service_of(resource_spans: ResourceSpans) -> str:
    """Who emitted these spans; empty when they do not say."""
    pairs = resource_spans.resource.attributes
    return next((pair.value.string_value for pair in pairs if pair.key == SERVICE_NAME), "")
