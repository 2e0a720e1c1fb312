"""One OTLP trace request becomes span facts, each with its episode; what cannot be read is set aside by reason.

In: `ExportTraceServiceRequest` bytes, from our gateway or any Collector. Out: SpanScan. Invariant: each span of a
request that parses is in exactly one of facts, skipped and refused; one bad span does not harm its neighbours.
Of a request that is damaged what can be read is read; one of which nothing can is refused whole (RecordError
`undecodable`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tracegrad.schemas.attributes import (
    ATTEMPT_KEYS,
    CONVERSATION_KEYS,
    COUNTED_SPAN,
    ERROR_TYPE,
    PROVED_BY,
    ROLLOUT_KEYS,
    SERVICE_NAME,
)
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import attempt_of
from tracegrad.schemas.mac import is_by_own_run
from tracegrad.schemas.metrics import NOT_SELECTED, Metrics
from tracegrad.schemas.otlp.salvage import damaged, salvage
from tracegrad.schemas.otlp.signal import TRACES
from tracegrad.schemas.records.facts import LinkFact, SpanFact, SpanKind

from .conversations import Conversations
from .dialects.agent_lightning import AGENT_LIGHTNING
from .dialects.agentops import AGENTOPS
from .dialects.dialect import Dialect
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
from .identity import claim_of, episode_of
from .reading.agent_hints import ATTRIBUTE_HINT, HINT_KEYS, agent_hints
from .reading.agent_rewards import REWARD_KEYS, rewards_in
from .reading.judge_tool import JUDGED_KEYS, ToolJudge
from .reading.otlp_values import attributes_of
from .reading.span_view import AttributeValue, SpanView

__all__ = ["DIALECTS", "Refused", "SpanReader", "SpanScan"]

DIALECTS: tuple[Dialect, ...] = (
    ADK,
    AGENTOPS,
    AGENT_LIGHTNING,
    CLAUDE_CODE,
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
_IDENTITY_KEYS = frozenset((*ROLLOUT_KEYS, *ATTEMPT_KEYS, *CONVERSATION_KEYS))
_SPAN_KEYS = _IDENTITY_KEYS.union(
    JUDGED_KEYS, HINT_KEYS, REWARD_KEYS, *(dialect.marks | dialect.keys for dialect in DIALECTS)
)
_BY_MARK: dict[str, list[Dialect]] = {}
for _dialect in DIALECTS:
    for _mark in _dialect.marks:
        _BY_MARK.setdefault(_mark, []).append(_dialect)
_NAMES = tuple(name for dialect in DIALECTS for name in dialect.names)
_EVENTS = {name: keys for dialect in DIALECTS for name, keys in dialect.events.items()}
_RESOURCE_KEYS = _IDENTITY_KEYS | {SERVICE_NAME, COUNTED_SPAN, PROVED_BY}
_MAX_NAME = 200


class Refused(NamedTuple):
    """Spans of one request that were refused for one reason: the first error, and a request with just them."""

    error: RecordError
    item: int
    request: ExportTraceServiceRequest


class SpanScan(NamedTuple):
    """What one request holds."""

    facts: dict[str, list[SpanFact]]
    """By episode."""
    links: dict[str, dict[LinkFact, None]]
    """By captured trace, in the order of their spans."""
    refused: dict[str, Refused]
    """Reason -> its spans."""
    signer: str | None
    """The run whose OTLP gateway wrote it."""
    damage: RecordError | None = None
    """Some of the request cannot be read, and is neither facts nor refused."""


class SpanReader:
    """Reads requests for one run. Not thread-safe."""

    def __init__(self, runs: Container[str], *, judge: ToolJudge, metrics: Metrics) -> None:
        self._runs = runs
        self._judge = judge
        self._metrics = metrics
        self._conversations = Conversations(runs, metrics)

    def read(self, value: bytes, *, signer: str | None) -> SpanScan:
        """The spans of a request. Raises RecordError when it does not parse.

        `signer`: the run whose OTLP gateway wrote it; only then is it known whose credential the gateway saw.
        """
        request, lost = salvage(TRACES, value)
        scan = SpanScan({}, {}, {}, signer, damaged(lost))
        item = 0
        for resource_spans in request.resource_spans:
            resource = attributes_of(resource_spans.resource.attributes, _RESOURCE_KEYS)
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    try:
                        self._read_span(span, resource, scope_spans.scope.name, scan)
                    except RecordError as error:
                        _refuse(scan, error, item, resource_spans, scope_spans, span)
                    item += 1
        return scan

    def _read_span(self, span: Span, resource: dict[str, AttributeValue], scope: str, scan: SpanScan) -> None:
        if len(span.trace_id) != 16 or not any(span.trace_id):
            raise RecordError(f"expected a trace id of 16 bytes, got {len(span.trace_id)}", reason="bad_trace_id")
        if len(span.span_id) != 8 or len(span.parent_span_id) not in (0, 8):
            raise RecordError(f"expected a span id of 8 bytes, got {len(span.span_id)}", reason="bad_span_id")
        attributes = attributes_of(span.attributes, _SPAN_KEYS)
        rollout = claim_of(ROLLOUT_KEYS, attributes, resource)
        attempt = claim_of(ATTEMPT_KEYS, attributes, resource)
        episode = episode_of(rollout, attempt, span.trace_id.hex(), self._runs)
        if episode is None:
            self._metrics.add(NOT_SELECTED, "spans")
            return
        # Which credential it came with matters to a runner's episode alone, and to that of the gateway's own run.
        is_attempt = attempt_of(episode, self._runs) is not None
        is_seen = is_attempt and is_by_own_run(scan.signer, episode)
        proved_by = str(resource.get(PROVED_BY, "")) if is_seen else ""
        fact = self._fact(span, attributes, resource, scope=scope, proved_by=proved_by)
        scan.facts.setdefault(episode, []).append(fact)
        if not is_attempt:
            links = scan.links.setdefault(episode, {})
            links.update(dict.fromkeys(self._conversations.links(fact, attributes, resource)))

    def _fact(
        self,
        span: Span,
        attributes: dict[str, AttributeValue],
        resource: dict[str, AttributeValue],
        *,
        scope: str,
        proved_by: str,
    ) -> SpanFact:
        events, hints = span.events, agent_hints(attributes)
        view = SpanView(
            name=span.name[:_MAX_NAME],
            attributes=attributes,
            status=span.status.code,
            has_exception=any(event.name == "exception" for event in events),
            is_cut=span.dropped_attributes_count > 0 or span.end_time_unix_nano == 0,
            scope=scope,
            is_server=span.kind == Span.SPAN_KIND_SERVER,
            events={
                event.name: attributes_of(event.attributes, _EVENTS[event.name])
                for event in events
                if event.name in _EVENTS
            },
            hints=hints,
        )
        readings = {dialect.name: found for dialect in _spoken(view) if (found := dialect.read(view)) is not None}
        dialect, meaning = merge(view, readings, self._judge)
        if meaning.kind is SpanKind.OTHER and any(reading.overrules for reading in readings.values()):
            # What a wrapper calls its agent is the wrapper.
            hints = {rung: name for rung, name in hints.items() if rung != ATTRIBUTE_HINT}
        return SpanFact(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_span_id=span.parent_span_id.hex() or None,
            name=view.name,
            dialect=dialect,
            service=str(resource.get(SERVICE_NAME, ""))[:_MAX_NAME],
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            is_counted=resource.get(COUNTED_SPAN) is True,
            proved_by=proved_by,
            parent_is_remote=_parent_is_remote(span),
            parent_is_local=bool(span.parent_span_id) and span.flags & 768 == 256,
            rewards=rewards_in(view.name, attributes),
            agent_hints=hints,
            error_type=view.text(ERROR_TYPE) if readings else None,
            **meaning._asdict(),
        )


def _spoken(view: SpanView) -> Iterable[Dialect]:
    """The dialects that the span bears a mark of; few, and mostly one or none."""
    marked = [dialect for key in view.attributes if key in _BY_MARK for dialect in _BY_MARK[key]]
    if view.name.startswith(_NAMES):
        marked += [dialect for dialect in DIALECTS if dialect.names and view.name.startswith(dialect.names)]
    return marked


def _parent_is_remote(span: Span) -> bool:
    """By the span's flags (256: they tell, 512: it is), else by its kind: who serves was called from elsewhere."""
    if not span.parent_span_id:
        return False
    return bool(span.flags & 512) if span.flags & 256 else span.kind in (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CONSUMER)


def _refuse(
    scan: SpanScan, error: RecordError, item: int, resource_spans: ResourceSpans, scope_spans: ScopeSpans, span: Span
) -> None:
    """Keeps the span, with its resource and scope, in a request that can be sent again once mended."""
    if error.reason not in scan.refused:
        scan.refused[error.reason] = Refused(error, item, ExportTraceServiceRequest())
    request = scan.refused[error.reason].request
    if not request.resource_spans or request.resource_spans[-1].resource != resource_spans.resource:
        request.resource_spans.add(schema_url=resource_spans.schema_url).resource.CopyFrom(resource_spans.resource)
    scopes = request.resource_spans[-1].scope_spans
    if not scopes or scopes[-1].scope != scope_spans.scope:
        scopes.add(schema_url=scope_spans.schema_url).scope.CopyFrom(scope_spans.scope)
    scopes[-1].spans.add().CopyFrom(span)
