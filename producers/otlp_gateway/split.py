"""One export request becomes records of one trace each, none larger than the record limit.

In: a decoded request. Out: pieces (key = trace id in hex) and the items that fit nowhere. Invariant: every span
is in exactly one piece or among the rejected; a piece keeps the resources and scopes of its spans. Failure: none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tracegrad.schemas.attributes import AGENTLIGHTNING_ATTEMPT_ID, AGENTLIGHTNING_ROLLOUT_ID, ATTEMPT_ID, ROLLOUT_ID

__all__ = ["Piece", "Rejected", "SplitRequest", "add_identity", "split"]

_ENVELOPE_BYTES = 32
"""More than the tags and lengths that wrap one span into a request (5 levels of at most 6 bytes)."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of one trace, as the bytes of an ExportTraceServiceRequest."""

    trace_id: str
    value: bytes
    num_spans: int


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A span that cannot be a record, by reference."""

    reason: str
    """`item_too_large`, `invalid_id` or `identity_conflict`."""
    trace_id: str
    span_id: str
    num_bytes: int
    sha256: str


class SplitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request."""

    pieces: tuple[Piece, ...]
    rejected: tuple[Rejected, ...]


def add_identity(request: ExportTraceServiceRequest, rollout: str, attempt: str) -> tuple[Rejected, ...]:
    """Writes the identity that the URL path told into every resource.

    Returns:
        The spans whose resource, or which themselves, claim another identity; they are taken out of the request.
    """
    told = {ROLLOUT_ID: rollout, ATTEMPT_ID: attempt}
    names = {**told, AGENTLIGHTNING_ROLLOUT_ID: rollout, AGENTLIGHTNING_ATTEMPT_ID: attempt}
    rejected: list[Rejected] = []
    for resource_spans in request.resource_spans:
        attributes = resource_spans.resource.attributes
        is_other = _differs(attributes, names)
        for scope_spans in resource_spans.scope_spans:
            spans: dict[bool, list[Span]] = {True: [], False: []}
            for span in scope_spans.spans:
                spans[is_other or _differs(span.attributes, names)].append(span)
            if spans[True]:
                rejected.extend(_reject(span, "identity_conflict") for span in spans[True])
                del scope_spans.spans[:]
                scope_spans.spans.extend(spans[False])
        kept = [attribute for attribute in attributes if attribute.key not in told]
        del attributes[:]
        attributes.extend(kept)
        attributes.extend(KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in told.items())
    return tuple(rejected)


def _differs(attributes: Iterable[KeyValue], names: dict[str, str]) -> bool:
    """Whether they claim another identity; one that is no text claims something too."""
    return any(pair.key in names and pair.value.string_value != names[pair.key] for pair in attributes)


def split(request: ExportTraceServiceRequest, *, target_bytes: int, item_limit_bytes: int) -> SplitRequest:
    """Splits by trace, then by size.

    Args:
        request: the decoded request; not changed.
        target_bytes: a piece is closed before it would grow beyond this; one larger span is a piece of its own.
        item_limit_bytes: a span that, with its resource and scope, exceeds this is rejected.
    """
    builders: dict[str, _TraceBuilder] = {}
    rejected: list[Rejected] = []
    for resource_spans, scope_spans, span in _walk(request):
        trace_id = span.trace_id.hex()
        if len(span.trace_id) != 16 or len(span.span_id) != 8 or not any(span.trace_id):
            rejected.append(_reject(span, "invalid_id"))
            continue
        if trace_id not in builders:
            builders[trace_id] = _TraceBuilder(trace_id, target_bytes, item_limit_bytes)
        if not builders[trace_id].add(resource_spans, scope_spans, span):
            rejected.append(_reject(span, "item_too_large"))
    pieces = tuple(piece for builder in builders.values() for piece in builder.finish())
    return SplitRequest(pieces=pieces, rejected=tuple(rejected))


def _walk(request: ExportTraceServiceRequest) -> Iterator[tuple[ResourceSpans, ScopeSpans, Span]]:
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield resource_spans, scope_spans, span


def _reject(span: Span, reason: str) -> Rejected:
    data = span.SerializeToString()
    return Rejected(
        reason=reason,
        trace_id=span.trace_id.hex()[:64],
        span_id=span.span_id.hex()[:32],
        num_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


class _TraceBuilder:
    """Gathers the spans of one trace into pieces, in the order they came."""

    def __init__(self, trace_id: str, target_bytes: int, item_limit_bytes: int) -> None:
        self._trace_id = trace_id
        self._target_bytes = target_bytes
        self._item_limit_bytes = item_limit_bytes
        self._pieces: list[Piece] = []
        self._clear()

    def _clear(self) -> None:
        self._request = ExportTraceServiceRequest()
        self._resource_of: ResourceSpans | None = None
        self._scope_of: ScopeSpans | None = None
        self._num_bytes = 0
        self._num_spans = 0

    def add(self, resource_spans: ResourceSpans, scope_spans: ScopeSpans, span: Span) -> bool:
        """Takes one span. False: it is larger than any record may be."""
        head = resource_spans.resource.ByteSize() + scope_spans.scope.ByteSize()
        head += len(resource_spans.schema_url) + len(scope_spans.schema_url) + _ENVELOPE_BYTES
        size = span.ByteSize() + _ENVELOPE_BYTES
        if head + size > self._item_limit_bytes:
            return False
        if self._num_spans and self._num_bytes + head + size > self._target_bytes:
            self._close()
        if self._resource_of is not resource_spans:
            opened = self._request.resource_spans.add(schema_url=resource_spans.schema_url)
            opened.resource.CopyFrom(resource_spans.resource)
            self._resource_of, self._scope_of = resource_spans, None
            self._num_bytes += head
        if self._scope_of is not scope_spans:
            scope = self._request.resource_spans[-1].scope_spans.add(schema_url=scope_spans.schema_url)
            scope.scope.CopyFrom(scope_spans.scope)
            self._scope_of = scope_spans
            self._num_bytes += head
        self._request.resource_spans[-1].scope_spans[-1].spans.append(span)
        self._num_bytes += size
        self._num_spans += 1
        return True

    def _close(self) -> None:
        self._pieces.append(
            Piece(
                trace_id=self._trace_id,
                value=self._request.SerializeToString(),
                num_spans=self._num_spans,
            )
        )
        self._clear()

    def finish(self) -> list[Piece]:
        """All pieces of the trace."""
        if self._num_spans:
            self._close()
        return self._pieces
