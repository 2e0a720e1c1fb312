"""The two kinds of OTLP request that we take, spans and log records, by the one shape that they have.

Resource over scope over item: a Signal names its messages and fields, so that who only sorts, judges and counts reads
either. In: bytes. Out: protobuf messages. Failure: UndecodableError (`undecodable`), never protobuf's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ..errors import UndecodableError
from ..reasons import Reason
from ..topics import Topic


class Signal(NamedTuple):
    """One kind of OTLP request: its messages, the names of their fields, and where it lies on the log."""

    items: str
    """As people say it: `spans`, `log records`."""
    topic: Topic
    request: type[Message]
    resources: str
    """The request's field; of its messages `scopes` is one, of whose messages `fields` is one."""
    scopes: str
    fields: str
    requires_ids: bool
    """Whether an item without trace and span id is none."""


_JSON = re.compile(rb"\s*\{\s*\"((?:resource|scope)_?(?:Spans|Logs|Metrics|spans|logs|metrics))\"")
"""How a request in JSON begins, which protobuf reads as no field at all or as damage."""
TRACES = Signal("spans", Topic.OTLP_SPANS, ExportTraceServiceRequest, "resource_spans", "scope_spans", "spans", True)
LOGS = Signal(
    "log records", Topic.OTLP_LOGS, ExportLogsServiceRequest, "resource_logs", "scope_logs", "log_records", False
)


def json_key(data: bytes) -> str:
    """The key with which a request in OTLP's JSON begins, such as `resourceMetrics`; empty: it is none, and no protobuf
    begins so."""
    begins = _JSON.match(data)
    return begins[1].decode() if begins else ""


def is_of(signal: Signal, key: str) -> bool:
    """Whether a request in JSON that begins with this key holds the signal's items."""
    return key.replace("_", "").lower() == signal.resources.replace("_", "")


def parsed(signal: Signal, data: bytes) -> Any:
    """The request, as protobuf reads it: unknown fields are kept. Raises UndecodableError."""
    request = signal.request()
    if json_key(data):
        raise UndecodableError(
            f"expected {type(request).__name__} bytes, got OTLP as JSON; send it as content type application/json",
            reason=Reason.UNDECODABLE,
        )
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise UndecodableError(f"expected an OTLP request, got {error}", reason=Reason.UNDECODABLE) from error
    return request


def items_of(signal: Signal, request: Message) -> Iterator[tuple[Any, Any, Any]]:
    """Every item of a request of this kind with its resource's message and its scope's."""
    for of_resource in getattr(request, signal.resources):
        for of_scope in getattr(of_resource, signal.scopes):
            for item in getattr(of_scope, signal.fields):
                yield of_resource, of_scope, item
