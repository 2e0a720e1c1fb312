"""Codex' own telemetry: `codex.tool_result`, as an event of whatever span is at work, and as a log record of its own.

A span's event bears no name of its own (Rust's `tracing` gives it the line of code), but an attribute `event.name`; it
says which tool call was answered and whether that went well, never what came back. The log record says that too, and
where only logs are exported, which is what Codex' documentation shows first, it belongs to no span. By the sources of
openai/codex, `codex-rs/otel` and `codex-rs/core/src/tools`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tracegrad.schemas.ids import key_in
from tracegrad.schemas.otlp.values import AttributeValue
from tracegrad.schemas.records.facts import SpanFact, SpanKind

from ..reading.judge_tool import ToolJudge
from ..reading.span_view import SpanView
from .dialect import OTHER, Dialect, SpanReading
from .merge import merge

_NAME = "codex"
TOOL_RESULT = "codex.tool_result"
_TOOL, _CALL, _SUCCESS, _ABORTED, _OUTPUT, _DURATION = (
    *("tool_name", "call_id", "success"),
    *("aborted", "output", "duration_ms"),
)
_EVENT_KEYS = frozenset({_TOOL, _CALL, _SUCCESS})
TOOL_RESULT_KEYS = _EVENT_KEYS | {_OUTPUT, _DURATION}
_MAX_MS = 10**9
_HEX_TRACE = 32


def _read(span: SpanView) -> SpanReading | None:
    said = span.events.get(TOOL_RESULT)
    if said is not None:
        return _execution(said)
    if _ABORTED not in span.attributes or _TOOL not in span.attributes:
        return None
    place = SpanReading(kind=SpanKind.OTHER, tool_call_id=span.text(_CALL), tool_name=span.text(_TOOL))
    # The span of a tool ends well however the tool did: it is no more than a place that knows the id.
    return _execution({**span.attributes, _SUCCESS: "false"}) if span.attributes[_ABORTED] is True else place


def _execution(said: Mapping[str, AttributeValue]) -> SpanReading:
    name, call_id = said.get(_TOOL), said.get(_CALL)
    if not isinstance(name, str) or not isinstance(call_id, str) or not call_id:
        return OTHER
    output = said.get(_OUTPUT)
    return SpanReading(
        kind=SpanKind.TOOL,
        tool_name=name,
        tool_call_id=call_id,
        results=() if output is None else (output,),
        declared=("success" if str(said.get(_SUCCESS)).lower() == "true" else "failed",),
    )


def trace_of_log(record: LogRecord, attributes: Mapping[str, AttributeValue]) -> bytes:
    """The trace of a tool's log record; of one without, that of the conversation whose call asked for the tool."""
    call_id = str(attributes.get(_CALL, ""))
    if len(record.trace_id) == 16 and any(record.trace_id):
        return bytes(record.trace_id)
    key = key_in(call_id) or ""
    return bytes.fromhex(key) if len(key) == _HEX_TRACE else hashlib.sha256(call_id.encode()).digest()[:16]


def execution_of_log(
    record: LogRecord,
    trace: bytes,
    attributes: Mapping[str, AttributeValue],
    judge: ToolJudge,
    *,
    service: str,
    proved_by: str,
) -> SpanFact | None:
    """The execution that a log record tells of, as a span below the one that the record belongs to; None: of none."""
    reading = _execution(attributes)
    if reading.tool_call_id is None:
        return None
    view = SpanView(name=TOOL_RESULT, attributes={}, status=0, has_exception=False, is_cut=False)
    names, meaning = merge(view, {_NAME: reading}, judge)
    end_ns = record.time_unix_nano or record.observed_time_unix_nano
    told = str(attributes.get(_DURATION, ""))
    duration_ms = min(int(told), _MAX_MS) if told.isdecimal() and len(told) < 12 else 0
    return SpanFact(
        trace_id=trace.hex(),
        span_id=hashlib.sha256(reading.tool_call_id.encode()).hexdigest()[:16],
        parent_span_id=record.span_id.hex() if len(record.span_id) == 8 and any(record.span_id) else None,
        name=TOOL_RESULT,
        dialect=names,
        start_ns=max(end_ns - duration_ms * 10**6, 0),
        end_ns=end_ns,
        service=service,
        proved_by=proved_by,
        **meaning._asdict(),
    )


CODEX = Dialect(
    _NAME,
    frozenset({_ABORTED}),
    frozenset({_TOOL, _CALL}),
    _read,
    events={TOOL_RESULT: _EVENT_KEYS},
)
