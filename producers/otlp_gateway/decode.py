"""OTLP/HTTP bodies become ExportTraceServiceRequest messages: gzip, protobuf and JSON.

In: the bytes and headers of a request. Out: the decoded message. Invariant: no more than `limit` bytes are ever
decompressed, so a small body cannot fill the memory. Failure: RequestError (413) or RecordError (400).
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad.schemas.errors import RecordError, RequestError
from tracegrad.schemas.text import decode_json

__all__ = ["JSON", "PROTOBUF", "decode_traces", "gunzip"]

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_HEX_FIELDS = ("traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id")


def gunzip(data: bytes, *, limit: int) -> bytes:
    """The decompressed bytes of one or more gzip members.

    Raises:
        RequestError: 413, more than `limit` bytes would come out; decompression stopped there.
        RecordError: not gzip, or cut short.
    """
    parts: list[bytes] = []
    size = 0
    while data:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            part = member.decompress(data, limit - size + 1)
        except zlib.error as error:
            raise RecordError(f"expected a gzip body, got {error}") from error
        size += len(part)
        if size > limit:
            raise RequestError(f"expected at most {limit} bytes after decompression, got more", status=413)
        if not member.eof:
            raise RecordError(f"expected a complete gzip body, got one cut after {size} bytes")
        parts.append(part)
        data = member.unused_data
    return b"".join(parts)


def decode_traces(data: bytes, content_type: str) -> ExportTraceServiceRequest:
    """The message of a body; unknown fields are ignored in JSON and kept in protobuf.

    Raises:
        RecordError: the body is not what its content type says.
    """
    if content_type == JSON:
        return _from_json(data)
    message = ExportTraceServiceRequest()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RecordError(f"expected ExportTraceServiceRequest bytes, got {error}") from error
    return message


def _from_json(data: bytes) -> ExportTraceServiceRequest:
    try:
        body = decode_json(data)  # JavaScript cuts text between the halves of a pair, and a batch is not lost by it
        if not isinstance(body, dict):
            raise RecordError(f"expected a JSON object, got {type(body).__name__}")
        for span in _spans(body):
            _ids_to_base64(span)
            for link in _dicts(span, "links"):
                _ids_to_base64(link)
        message = ExportTraceServiceRequest()
        json_format.ParseDict(body, message, ignore_unknown_fields=True)
        return message
    except (ValueError, TypeError, RecursionError, json_format.Error) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"expected OTLP JSON, got {type(error).__name__}: {str(error)[:200]}") from error


def _spans(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        span
        for resource in _dicts(body, "resourceSpans", "resource_spans")
        for scope in _dicts(resource, "scopeSpans", "scope_spans")
        for span in _dicts(scope, "spans")
    ]


def _dicts(parent: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    found = [item for name in names for item in parent.get(name) or ()]
    if not all(isinstance(item, dict) for item in found):
        raise RecordError(f"expected a list of objects in {names[0]}")
    return found


def _ids_to_base64(item: dict[str, Any]) -> None:
    """OTLP JSON writes ids in hex, where protobuf's JSON mapping expects base64."""
    for name in _HEX_FIELDS:
        if item.get(name):
            item[name] = base64.b64encode(bytes.fromhex(item[name])).decode()
