"""OTLP requests, the values of `otlp_spans` and `otlp_logs`: bytes become a message, a message its spans or log
records.

In: bytes, of our gateway's or any Collector's. Out: protobuf messages; nothing is copied. Both kinds of request have
one shape, resource over scope over item, which a Signal names, so that who only sorts and counts reads either.
Invariant: bytes that are no request are an UndecodableError (`undecodable`), never protobuf's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from ..attributes import SERVICE_NAME
from ..errors import UndecodableError
from ..topics import Topic

__all__ = ["LOGS", "TRACES", "Signal", "decode", "decode_logs", "decode_spans", "items_of", "service_of", "spans_of"]

M = TypeVar("M", bound=Message)


class Signal(NamedTuple):
    """One kind of OTLP request: its messages, the names of their fields, and where it lies on the log."""

    items: str
    """As people say it, and as the metrics count it: `spans`, `log records`."""
    topic: Topic
    request: type[Message]
    resources: str
    """The request's field; of its messages `scopes` is one, of whose messages `fields` is one."""
    scopes: str
    fields: str
    requires_ids: bool
    """Whether an item without trace and span id is none."""


TRACES = Signal("spans", Topic.OTLP_SPANS, ExportTraceServiceRequest, "resource_spans", "scope_spans", "spans", True)
LOGS = Signal(
    "log records", Topic.OTLP_LOGS, ExportLogsServiceRequest, "resource_logs", "scope_logs", "log_records", False
)


def decode(signal: Signal, value: bytes | None) -> Message:
    """Raises UndecodableError."""
    return _parsed(signal.request(), value)


def decode_spans(value: bytes | None) -> ExportTraceServiceRequest:
    """Raises UndecodableError."""
    return _parsed(ExportTraceServiceRequest(), value)


def decode_logs(value: bytes | None) -> ExportLogsServiceRequest:
    """Raises UndecodableError."""
    return _parsed(ExportLogsServiceRequest(), value)


def _parsed(message: M, value: bytes | None) -> M:
    """Unknown fields are kept."""
    try:
        message.ParseFromString(value or b"")
    except DecodeError as error:
        raise UndecodableError(f"expected {type(message).__name__} bytes, got {error}", reason="undecodable") from error
    return message


def spans_of(request: ExportTraceServiceRequest) -> Iterator[tuple[ResourceSpans, ScopeSpans, Span]]:
    """Every span with what wraps it."""
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield resource_spans, scope_spans, span


def items_of(signal: Signal, request: Message) -> Iterator[tuple[Any, Any, Any]]:
    """Every item of a request of this kind with its resource's message and its scope's."""
    for of_resource in getattr(request, signal.resources):
        for of_scope in getattr(of_resource, signal.scopes):
            for item in getattr(of_scope, signal.fields):
                yield of_resource, of_scope, item


def service_of(resource_spans: ResourceSpans) -> str:
    """Who emitted these spans; empty when they do not say."""
    pairs = resource_spans.resource.attributes
    return next((pair.value.string_value for pair in pairs if pair.key == SERVICE_NAME), "")
