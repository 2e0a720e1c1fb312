"""A value of `otlp_spans` or `otlp_logs` becomes a request: our gateway's protobuf, or what the Kafka exporter of any
Collector writes.

In: bytes. Out: a request of every item that can be read, and what was left out; its spans, and who emitted them.
Invariant: protobuf and JSON of one request are one request. Failure: UndecodableError (`undecodable`), which names the
encoding where that is another exporter's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from ..attributes import SERVICE_NAME
from ..errors import UndecodableError
from ..reasons import Reason
from .read_json import read_json
from .salvage import SalvagedRequest, salvage
from .signal import LOGS, TRACES, Signal, is_of, items_of, json_key

_OTHER_ENCODINGS = (
    ("jaeger_json", re.compile(rb'\s*\{[^{]*"(?:traceId|traceID|spanId|spanID|operationName)"')),
    ("zipkin_json", re.compile(rb'\s*\[\s*\{.*?"(?:traceId|localEndpoint)"', re.DOTALL)),
    # trace_id of 16 bytes, span_id of 8: OTLP's requests have no second field.
    ("jaeger_proto", re.compile(rb"\x0a\x10.{16}\x12\x08", re.DOTALL)),
    # A list of spans: trace_id of 16 or 8 bytes, then parent_id or id.
    ("zipkin_proto", re.compile(rb"\x0a.{1,4}?\x0a(?:\x10.{16}|\x08.{8})(?:\x12|\x1a)\x08", re.DOTALL)),
)
"""What else the Kafka exporter of a Collector may be told to write (its option `encoding`), and how that begins."""


def read_request(signal: Signal, value: bytes | None) -> SalvagedRequest:
    """Raises UndecodableError when nothing can be read."""
    data = value or b""
    try:
        found = read_json(signal, data) if json_key(data) else salvage(signal, data)
        refusal = None
    except UndecodableError as error:
        found, refusal = SalvagedRequest(signal.request()), error
    if next(items_of(signal, found.request), None) is None:
        refusal = _of_another_kind(signal, data) or refusal
    if refusal is not None:
        raise refusal
    return found


def _of_another_kind(signal: Signal, data: bytes) -> UndecodableError | None:
    named = json_key(data)
    remedy = "have the exporter write each signal to a topic of its own (docs/collector.md)"
    if not named or is_of(signal, named):
        named = next((name for name, begins in _OTHER_ENCODINGS if begins.match(data)), "")
        remedy = "set `encoding: otlp_proto` or `otlp_json` at the exporter that writes the topic"
    if not named:
        return None
    return UndecodableError(f"expected {signal.items} in OTLP, got {named}; {remedy}", reason=Reason.UNDECODABLE)


def decode_spans(value: bytes | None) -> ExportTraceServiceRequest:
    """Raises UndecodableError."""
    request: ExportTraceServiceRequest = read_request(TRACES, value).request
    return request


def decode_logs(value: bytes | None) -> ExportLogsServiceRequest:
    """Raises UndecodableError."""
    request: ExportLogsServiceRequest = read_request(LOGS, value).request
    return request


def spans_of(request: ExportTraceServiceRequest) -> Iterator[tuple[ResourceSpans, ScopeSpans, Span]]:
    """Every span with what wraps it."""
    return items_of(TRACES, request)


def service_of(resource_spans: ResourceSpans) -> str:
    """Who emitted these spans; empty when they do not say."""
    pairs = resource_spans.resource.attributes
    return next((pair.value.string_value for pair in pairs if pair.key == SERVICE_NAME), "")
