"""One export request becomes records of one trace each, none larger than the record limit.

In: a decoded request. Out: pieces (key = trace id in hex) and the items that fit nowhere. Invariant: every span
is in exactly one piece or among the rejected; a piece keeps the resources and scopes of its spans, and says its size
before it is built. Failure: RecordError, too many fit nowhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tracegrad.schemas.attributes import AGENTLIGHTNING_ATTEMPT_ID, AGENTLIGHTNING_ROLLOUT_ID, ATTEMPT_ID, ROLLOUT_ID
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records.otlp import spans_of

__all__ = ["Piece", "Rejected", "add_identity", "split"]

_ENVELOPE_BYTES = 32
"""More than the tags and lengths that wrap one span into a request (5 levels of at most 6 bytes)."""


_MAX_REJECTED = 1_000
"""Of one request; exporters send some hundred spans, and two bytes of nothing would make a dead letter each."""


class Piece:
    """Spans of one trace, in the order they came, that one record will hold; the record is built when it is asked for,
    for it repeats their resources and scopes and so may be much larger than what they came in."""

    def __init__(self, trace_id: bytes) -> None:
        self.trace_id = trace_id.hex()
        self.num_bytes = 0
        """At least those of the record."""
        self._spans: list[tuple[ResourceSpans, ScopeSpans, Span]] = []

    @property
    def num_spans(self) -> int:
        """How many it has."""
        return len(self._spans)

    def add(self, resource_spans: ResourceSpans, scope_spans: ScopeSpans, span: Span, *, head: int, size: int) -> None:
        """Takes one span; `head` bytes wrap it, `size` are its own."""
        last = self._spans[-1] if self._spans else (None, None, None)
        self.num_bytes += size + head * ((last[0] is not resource_spans) + (last[1] is not scope_spans))
        self._spans.append((resource_spans, scope_spans, span))

    def value(self) -> bytes:
        """The bytes of an ExportTraceServiceRequest."""
        request = ExportTraceServiceRequest()
        resource_of = scope_of = None
        for resource_spans, scope_spans, span in self._spans:
            if resource_of is not resource_spans:
                opened = request.resource_spans.add(schema_url=resource_spans.schema_url)
                opened.resource.CopyFrom(resource_spans.resource)
                resource_of, scope_of = resource_spans, None
            if scope_of is not scope_spans:
                scope = request.resource_spans[-1].scope_spans.add(schema_url=scope_spans.schema_url)
                scope.scope.CopyFrom(scope_spans.scope)
                scope_of = scope_spans
            request.resource_spans[-1].scope_spans[-1].spans.append(span)
        value: bytes = request.SerializeToString()
        return value


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A span that cannot be a record, by reference."""

    reason: str
    """`item_too_large`, `invalid_id` or `identity_conflict`."""
    trace_id: str
    span_id: str
    num_bytes: int
    sha256: str


def add_identity(request: ExportTraceServiceRequest, rollout: str, attempt: str) -> list[Rejected]:
    """Writes the identity that the URL path told into every resource.

    Returns:
        The spans whose resource, or which themselves, claim another identity; they are taken out of the request.
    Raises:
        RecordError: these are more than a thousand.
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
                _check_rejected(len(rejected) + len(spans[True]))
                rejected.extend(_reject(span, "identity_conflict") for span in spans[True])
                del scope_spans.spans[:]
                scope_spans.spans.extend(spans[False])
        kept = [attribute for attribute in attributes if attribute.key not in told]
        del attributes[:]
        attributes.extend(kept)
        attributes.extend(KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in told.items())
    return rejected


def _differs(attributes: Iterable[KeyValue], names: dict[str, str]) -> bool:
    """Whether they claim another identity; one that is no text claims something too."""
    return any(pair.key in names and pair.value.string_value != names[pair.key] for pair in attributes)


def split(
    request: ExportTraceServiceRequest, *, target_bytes: int, item_limit_bytes: int
) -> tuple[list[Piece], list[Rejected]]:
    """Splits by trace, then by size.

    Args:
        request: the decoded request; not changed.
        target_bytes: a piece is closed before it would grow beyond this; one larger span is a piece of its own.
        item_limit_bytes: a span that, with its resource and scope, exceeds this is rejected.
    Raises:
        RecordError: more than a thousand would be rejected.
    """
    growing: dict[bytes, Piece] = {}
    pieces: list[Piece] = []
    rejected: list[Rejected] = []
    for resource_spans, scope_spans, span in spans_of(request):
        _check_rejected(len(rejected))
        if len(span.trace_id) != 16 or len(span.span_id) != 8 or not any(span.trace_id):
            rejected.append(_reject(span, "invalid_id"))
            continue
        head = resource_spans.resource.ByteSize() + scope_spans.scope.ByteSize()
        head += len(resource_spans.schema_url) + len(scope_spans.schema_url) + _ENVELOPE_BYTES
        size = span.ByteSize() + _ENVELOPE_BYTES
        if head + size > item_limit_bytes:
            rejected.append(_reject(span, "item_too_large"))
            continue
        piece = growing.get(span.trace_id)
        if piece is None or piece.num_bytes + head + size > target_bytes:
            piece = growing[span.trace_id] = Piece(span.trace_id)
            pieces.append(piece)
        piece.add(resource_spans, scope_spans, span, head=head, size=size)
    return pieces, rejected


def _check_rejected(num: int) -> None:
    if num > _MAX_REJECTED:
        raise RecordError(f"expected spans that records can hold, got more than {_MAX_REJECTED} others")


def _reject(span: Span, reason: str) -> Rejected:
    data = span.SerializeToString()
    return Rejected(
        reason=reason,
        trace_id=span.trace_id.hex()[:64],
        span_id=span.span_id.hex()[:32],
        num_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
