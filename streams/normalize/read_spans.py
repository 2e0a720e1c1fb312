"""One OTLP trace request becomes span facts, each with its episode and what it links its trace to.

In: `ExportTraceServiceRequest` bytes. Out: Scan. Invariant: each span of a request that parses is in exactly one of
facts, skipped and refused. Only attributes that something reads are decoded, and a dialect is asked only of a span that
bears a mark of it: most spans bear none, of an HTTP client or a database, and are to cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad.schemas.attributes import CONVERSATION_KEYS, COUNTED_SPAN, ERROR_TYPE, SERVICE_NAME
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.metrics import ATTRIBUTES_DROPPED, Metrics
from tracegrad.schemas.otlp.signal import TRACES
from tracegrad.schemas.otlp.values import AttributeValue, attributes_of
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.facts import SpanFact, SpanKind

from ..config import HistoryConfig
from .dialects.agent_lightning import AGENT_LIGHTNING
from .dialects.agentops import AGENTOPS
from .dialects.codex import CODEX
from .dialects.dialect import Dialect, SpanReading
from .dialects.frameworks import ADK, CLAUDE_CODE, PYDANTIC_AI
from .dialects.langfuse import LANGFUSE
from .dialects.langsmith import LANGSMITH
from .dialects.merge import merge
from .dialects.mlflow import MLFLOW
from .dialects.openinference import OPENINFERENCE
from .dialects.otel_genai import OTEL_GENAI
from .dialects.servers import LITELLM, MCP, VLLM
from .dialects.traceloop import TRACELOOP
from .dialects.vercel_ai import VERCEL_AI
from .reading.agent_hints import ATTRIBUTE_HINT, HINT_KEYS, agent_hints
from .reading.judge_tool import JUDGED_KEYS, ToolJudge
from .reading.returned import HTTP_KEYS, USAGE_KEYS, http_status_of, usage_of
from .reading.span_rewards import LIGHTNING_KEYS, rewards_in
from .reading.span_view import SpanView
from .scan import IDENTITY_KEYS, RESOURCE_KEYS, ItemSource, Placement, Scan
from .span_links import Conversations
from .told.read_call import told_call, told_tools

DIALECTS: tuple[Dialect, ...] = (
    ADK,
    AGENTOPS,
    AGENT_LIGHTNING,
    CLAUDE_CODE,
    CODEX,
    LANGFUSE,
    LANGSMITH,
    LITELLM,
    MCP,
    MLFLOW,
    OPENINFERENCE,
    OTEL_GENAI,
    PYDANTIC_AI,
    TRACELOOP,
    VERCEL_AI,
    VLLM,
)
"""Each reads what it finds on a span, whatever the others find. A new dialect is a new row."""
_SPAN_KEYS = IDENTITY_KEYS.union(
    CONVERSATION_KEYS,
    JUDGED_KEYS,
    HINT_KEYS,
    LIGHTNING_KEYS,
    USAGE_KEYS,
    HTTP_KEYS,
    *(dialect.marks | dialect.keys for dialect in DIALECTS),
)
_BY_MARK: dict[str, list[Dialect]] = {}
for _dialect in DIALECTS:
    for _mark in _dialect.marks:
        _BY_MARK.setdefault(_mark, []).append(_dialect)
_NAMES = tuple(name for dialect in DIALECTS for name in dialect.names)
_EVENTS = {name: keys for dialect in DIALECTS for name, keys in dialect.events.items()}
_UNNAMED = "event "
"""How the names of Rust's events begin, which are a line of code; what happened is an attribute."""
_EVENT_NAME = frozenset({"event.name"})
_RESOURCE_KEYS = RESOURCE_KEYS.union(CONVERSATION_KEYS, (SERVICE_NAME, COUNTED_SPAN))
_MAX_NAME = 200
_UNTOLD: dict[str, Any] = {"kind": SpanKind.OTHER, "dialect": "none"}
"""Fields of the fact of a span that speaks no dialect."""
_SERVING = (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CONSUMER)


class SpanReader:
    """Reads requests for one run. Not thread-safe."""

    def __init__(
        self, runs: Container[str], *, judge: ToolJudge, metrics: Metrics, history: HistoryConfig | None = None
    ) -> None:
        """`history`: what models' spans tell of their calls is read too."""
        self._runs = runs
        self._history = history
        self._judge = judge
        self._metrics = metrics
        self._conversations = Conversations(runs, metrics)

    def read(self, value: bytes, *, signer: str | None) -> Scan:
        """The spans of a request; see Scan."""
        scan = Scan(TRACES, value, signer=signer, runs=self._runs, metrics=self._metrics)
        return scan.read(self._read_span, _RESOURCE_KEYS)

    def _read_span(self, span: Span, source: ItemSource, scan: Scan) -> None:
        trace_id = span.trace_id
        if len(trace_id) != 16 or not any(trace_id):
            raise RecordError(f"expected a trace id of 16 bytes, got {len(trace_id)}", reason=Reason.BAD_TRACE_ID)
        if len(span.span_id) != 8 or len(span.parent_span_id) not in (0, 8):
            raise RecordError(f"expected a span id of 8 bytes, got {len(span.span_id)}", reason=Reason.BAD_SPAN_ID)
        if span.dropped_attributes_count:
            self._metrics.add(ATTRIBUTES_DROPPED, "spans", num=span.dropped_attributes_count)
        attributes = attributes_of(span.attributes, _SPAN_KEYS)
        place = scan.place(trace_id, attributes, source)
        if place is not None:
            fact = self._fact(span, attributes, source, place)
            scan.add_fact(
                place, fact, self._conversations.links(fact, span, attributes, source) if place.is_captured else ()
            )
            if self._history is not None and place.is_captured:
                read = told_call if fact.kind is SpanKind.LLM else told_tools
                scan.add_told(place, read(span, source.scope), self._history)

    def _fact(
        self, span: Span, attributes: Mapping[str, AttributeValue], source: ItemSource, place: Placement
    ) -> SpanFact:
        name, parent, resource = span.name[:_MAX_NAME], span.parent_span_id, source.resource
        flags = span.flags if parent else 0
        told = {**_UNTOLD, "agent_hints": agent_hints(attributes)}
        dialects = _spoken(name, attributes)
        if span.events and _tells_of_tool(span):
            dialects.append(CODEX)
        if dialects:
            told |= self._told(_view(span, name, attributes, source.scope, told["agent_hints"]), dialects)
        return SpanFact(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_span_id=parent.hex() or None,
            name=name,
            service=str(resource.get(SERVICE_NAME, ""))[:_MAX_NAME],
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            is_counted=resource.get(COUNTED_SPAN) is True,
            proved_by=place.proved_by,
            parent_is_remote=bool(parent) and _is_remote(span, flags),
            parent_is_local=flags & 768 == 256,
            rewards=rewards_in(name, attributes),
            http_status=http_status_of(attributes),
            **told,
        )

    def _told(self, view: SpanView, dialects: Iterable[Dialect]) -> dict[str, Any]:
        """What dialects tell of a span: fields of its fact."""
        readings: dict[str, SpanReading] = {}
        for dialect in dialects:
            if dialect.name not in readings and (found := dialect.read(view)) is not None:
                readings[dialect.name] = found
        if not readings:
            return {}
        names, meaning = merge(view, readings, self._judge)
        told = {"dialect": names, "error_type": view.text(ERROR_TYPE), **meaning._asdict()}
        told |= usage_of(view.attributes, meaning.kind)
        if meaning.kind is SpanKind.OTHER and any(reading.overrules for reading in readings.values()):
            # What a wrapper calls its agent is the wrapper.
            told["agent_hints"] = {rung: name for rung, name in view.hints.items() if rung != ATTRIBUTE_HINT}
        return told


def _spoken(name: str, attributes: Iterable[str]) -> list[Dialect]:
    """The dialects that the span bears a mark of; few, and mostly one or none."""
    marked = [dialect for key in attributes if key in _BY_MARK for dialect in _BY_MARK[key]]
    if name.startswith(_NAMES):
        marked += [dialect for dialect in DIALECTS if dialect.names and name.startswith(dialect.names)]
    return marked


def _called(event: Span.Event) -> str:
    """What happened, by the event's name or in its stead."""
    if not event.name.startswith(_UNNAMED):
        return str(event.name)
    return str(attributes_of(event.attributes, _EVENT_NAME).get("event.name", ""))


def _tells_of_tool(span: Span) -> bool:
    """Whether one of its events is Codex' word on a tool, on whatever span was at work."""
    return any(event.name.startswith(_UNNAMED) and _called(event) in CODEX.events for event in span.events)


def _view(
    span: Span, name: str, attributes: Mapping[str, AttributeValue], scope: str, hints: Mapping[str, str]
) -> SpanView:
    has_exception, events = False, dict[str, dict[str, AttributeValue]]()
    for event in span.events:
        called = _called(event)
        has_exception |= called == "exception"
        if called in _EVENTS:
            events[called] = attributes_of(event.attributes, _EVENTS[called])
    return SpanView(
        name=name,
        attributes=attributes,
        status=span.status.code,
        has_exception=has_exception,
        is_cut=span.dropped_attributes_count > 0 or span.end_time_unix_nano == 0,
        scope=scope,
        is_server=span.kind == Span.SPAN_KIND_SERVER,
        events=events,
        hints=hints,
    )


def _is_remote(span: Span, flags: int) -> bool:
    """Of its parent, by its flags (256: they tell, 512: it is), else by its kind: who serves was called from afar."""
    return bool(flags & 512) if flags & 256 else span.kind in _SERVING
