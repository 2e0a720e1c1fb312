"""Files as a Collector's exporters and those who rotate them leave them."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import zstandard
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from tests.streams.collector_json import otlp_json
from tests.streams.make import otlp, span
from tracegrad.compose.history.exports.exported_files import FileItem, Place, list_files, read_files
from tracegrad.schemas.otlp.signal import TRACES, Signal, parsed

BEGAN_NS = 1_700_000_000_000_000_000
"""Of the first request; each is a second long."""


def spans(number: int, num_spans: int = 3, text: str = "") -> bytes:
    """The request `number`: spans of two traces, the last of which ends `number` seconds in."""
    at = BEGAN_NS + number * 1_000_000_000
    made = [
        span(f"{number * 2 + k % 2 + 1:032x}", number * 100 + k + 1, "step", at=at - k, text=text or f"caf\u00e9 {k}")
        for k in range(num_spans)
    ]
    return otlp(*made)


def logs(number: int, *, trace_id: bytes = b"") -> bytes:
    """A request of one log record."""
    at = BEGAN_NS + number * 1_000_000_000
    record = LogRecord(
        observed_time_unix_nano=at,
        trace_id=trace_id,
        span_id=trace_id[:8],
        body=AnyValue(string_value=f"said {number}"),
    )
    value: bytes = ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(scope_logs=[ScopeLogs(log_records=[record])])]
    ).SerializeToString()
    return value


def collector_json(signal: Signal, value: bytes) -> bytes:
    """One request as `format: json` writes it."""
    return otlp_json(parsed(signal, value))


def json_lines(values: Iterable[bytes], signal: Signal = TRACES) -> bytes:
    """`format: json`."""
    return b"".join(collector_json(signal, value) + b"\n" for value in values)


def framed(values: Iterable[bytes]) -> bytes:
    """`format: proto`."""
    return b"".join(struct.pack(">I", len(value)) + value for value in values)


def zstd(data: bytes) -> bytes:
    """One frame."""
    return zstandard.ZstdCompressor().compress(data)


FORMS: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "json-lines": json_lines,
    "json-lines-without-an-end": lambda values: json_lines(values).rstrip(b"\n"),
    "json-lines-with-empty-ones": lambda values: b"\n" + json_lines(values).replace(b"\n", b"\r\n\n"),
    "lengths": framed,
    "lengths-of-json": lambda values: framed(collector_json(TRACES, value) for value in values),
    "lengths-of-zstd": lambda values: framed(map(zstd, values)),
    "lengths-of-zstd-of-json": lambda values: framed(zstd(collector_json(TRACES, value)) for value in values),
    "gzip-of-json-lines": lambda values: gzip.compress(json_lines(values)),
    "gzip-of-lengths": lambda values: gzip.compress(framed(values)),
    "gzip-members": lambda values: b"".join(gzip.compress(json_lines([value])) for value in values),
    "zstd-of-json-lines": lambda values: zstd(json_lines(values)),
    "zstd-of-lengths": lambda values: zstd(framed(values)),
    "zstd-frames-of-lengths": lambda values: b"".join(zstd(framed([value])) for value in values),
}
"""Requests of spans -> a file that holds them."""


class Lost(NamedTuple):
    """Of an item."""

    place: Place
    num_bytes: int
    why: str


def value_of(item: FileItem) -> bytes:
    """A request in protobuf."""
    value: bytes = item.request.SerializeToString()
    return value


def read(path: Path, after: Place | None = None) -> tuple[list[FileItem], list[Lost]]:
    """The requests of a path, and what is lost."""
    found = list(read_files(list_files(str(path)), after))
    lost = [Lost(item.place, one.num_bytes, one.why) for item in found for one in item.lost]
    return [item for item in found if item.request is not None], lost
