"""An episode's spans as a waterfall. In: spans of OTLP. Out: rows in the order of the tree. Pure; failure: none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from tracegrad.schemas.attributes import (
    GEN_AI_AGENT_NAME,
    GEN_AI_OPERATION_NAME,
    GEN_AI_RESPONSE_ID,
    GEN_AI_TOOL_NAME,
)
from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.otlp.read import service_of
from tracegrad.schemas.otlp.values import plain

_MAX_ROWS = 400
_MAX_DEPTH = 12
"""Deeper ones are drawn there."""
_MAX_ATTRIBUTES = 40
_MAX_VALUE = 2_000
_WIDTH = 1_000
"""Of the picture, in its own units."""
_NS_PER_MS = 1e6


class SpanView(NamedTuple):
    """What is shown of a span."""

    id: str
    parent: str
    trace: str
    name: str
    service: str
    scope: str
    begin_ns: int
    end_ns: int
    is_error: bool
    error: str
    attributes: tuple[tuple[str, str], ...]
    kind: str
    """`agent`, `llm`, `tool`, `http` or `other`."""
    response: str
    """The answer that it says it got: a call's id as its API spelt it."""


class SpanBar(NamedTuple):
    """A row of the waterfall."""

    span: SpanView
    depth: int
    x: float
    width: float
    """Both of 0 to 1000."""
    begin_ms: float
    """Since the first span's begin."""
    duration_ms: float | None
    """None: it never ended."""
    call: int | None
    """Number of the call, from 1, whose answer it is."""


def span_view(resource: ResourceSpans, scope: ScopeSpans, span: Span) -> SpanView:
    """A span without what nobody looks at; long values are cut."""
    values = {pair.key: plain(pair.value) for pair in span.attributes[:_MAX_ATTRIBUTES]}
    return SpanView(
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        trace=span.trace_id.hex(),
        name=span.name[:_MAX_VALUE],
        service=service_of(resource),
        scope=scope.scope.name,
        begin_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        error=span.status.message[:_MAX_VALUE],
        attributes=tuple((key, _cut(value)) for key, value in sorted(values.items()) if value is not None),
        kind=_kind(values),
        response=str(values.get(GEN_AI_RESPONSE_ID) or ""),
    )


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} .. ({len(text):,} characters)"


def _kind(values: Mapping[str, Any]) -> str:
    """By OpenTelemetry's conventions; a dialect that has others is `other`."""
    operation = values.get(GEN_AI_OPERATION_NAME)
    if GEN_AI_TOOL_NAME in values or operation == "execute_tool":
        return "tool"
    if operation in ("invoke_agent", "create_agent"):
        return "agent"
    if operation is not None or GEN_AI_RESPONSE_ID in values:
        return "llm"
    if GEN_AI_AGENT_NAME in values:
        return "agent"
    return "http" if any(key.startswith("http.") for key in values) else "other"


def waterfall(spans: Sequence[SpanView], calls: Mapping[str, int]) -> list[SpanBar]:
    """Parents before children, those that began first first, at most 400.

    Args:
        spans: in any order; one whose parent is not among them begins a tree.
        calls: the number of a call, by its id.
    """
    if not spans:
        return []
    ids = {span.id for span in spans}
    children: dict[str, list[SpanView]] = {}
    for span in sorted(spans, key=lambda span: (span.begin_ns, span.id), reverse=True):
        children.setdefault(span.parent if span.parent in ids and span.parent != span.id else "", []).append(span)
    first = min(span.begin_ns for span in spans)
    last = max(max(span.end_ns, span.begin_ns) for span in spans)
    scale = _WIDTH / max(1, last - first)
    bars: list[SpanBar] = []
    stack = [(span, 0) for span in children.get("", ())]
    while stack and len(bars) < _MAX_ROWS:
        span, depth = stack.pop()
        # What is taken is gone: spans that name each other as parents end nowhere.
        stack += [(child, depth + 1) for child in children.pop(span.id, ())]
        took = span.end_ns - span.begin_ns if span.end_ns >= span.begin_ns and span.end_ns else None
        bars.append(
            SpanBar(
                span=span,
                depth=min(depth, _MAX_DEPTH),
                x=round((span.begin_ns - first) * scale, 1),
                width=round(max(2.0, (took or 0) * scale), 1),
                begin_ms=(span.begin_ns - first) / _NS_PER_MS,
                duration_ms=None if took is None else took / _NS_PER_MS,
                call=calls.get(canonical_call(span.response) or ""),
            )
        )
    return bars
