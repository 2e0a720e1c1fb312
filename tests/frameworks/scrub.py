"""Takes out of a raw record what tells of the machine that it was recorded on.

In: a record of a raw topic. Out: the same record, with attributes of host and process left out, stack traces cut to
nothing and paths replaced. Calls hold none of it and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableSequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tracegrad.schemas.topics import Topic

_OF_MACHINE = ("process.", "host.", "os.", "service.instance.id", "thread.", "user.", "code.", "langsmith.runtime")
_STACK = "exception.stacktrace"
_PATH = re.compile(r"(?:/(?:tmp|work|root|home|usr|var|opt)/)[^\s\"'\\,;:)\]}]*")


def scrubbed(topic: Topic, value: bytes, folder: str) -> bytes:
    """The record without the machine; `folder`: where the agent ran."""
    if topic is Topic.OTLP_LOGS:
        return _scrubbed_logs(value)
    if topic is not Topic.OTLP_SPANS:
        return value
    request = ExportTraceServiceRequest.FromString(value)
    for resource_spans in request.resource_spans:
        _clean(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                _clean(span.attributes)
                span.status.message = without_paths(span.status.message)
                for event in span.events:
                    _clean(event.attributes)
    clean: bytes = request.SerializeToString()
    return clean


def without_paths(text: str) -> str:
    """A text without the machine's paths."""
    return _PATH.sub("<path>", text)


def _scrubbed_logs(value: bytes) -> bytes:
    request = ExportLogsServiceRequest.FromString(value)
    for resource_logs in request.resource_logs:
        _clean(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            for log in scope_logs.log_records:
                _clean(log.attributes)
                _replace(log.body)
    clean: bytes = request.SerializeToString()
    return clean


def _clean(attributes: Any) -> None:
    kept: list[KeyValue] = [pair for pair in attributes if not pair.key.startswith(_OF_MACHINE) and pair.key != _STACK]
    for pair in kept:
        _replace(pair.value)
    _set(attributes, kept)


def _set(attributes: MutableSequence[KeyValue], kept: Iterable[KeyValue]) -> None:
    copies = [KeyValue.FromString(pair.SerializeToString()) for pair in kept]
    del attributes[:]
    attributes.extend(copies)


def _replace(value: AnyValue) -> None:
    if value.HasField("string_value"):
        value.string_value = without_paths(value.string_value)
    elif value.HasField("array_value"):
        for one in value.array_value.values:
            _replace(one)
    elif value.HasField("kvlist_value"):
        for pair in value.kvlist_value.values:
            _replace(pair.value)
