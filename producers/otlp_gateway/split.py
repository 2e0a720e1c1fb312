"""One export request becomes records of one trace each, none larger than the record limit.

In: a decoded request of spans or log records. Out: pieces (key = trace id in hex, none for log records of no trace) and
the items that fit nowhere. Invariant: every item is in exactly one piece or among the rejected; a piece keeps the
resources and scopes of its items, and says its size before it is built. Failure: RecordError, too many fit nowhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from google.protobuf.message import Message  # type: ignore[import-untyped]
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tracegrad.schemas.attributes import AGENTLIGHTNING_ATTEMPT_ID, AGENTLIGHTNING_ROLLOUT_ID, ATTEMPT_ID, ROLLOUT_ID
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.otlp.signal import Signal, items_of
from tracegrad.schemas.reasons import Reason

_ENVELOPE_BYTES = 32
"""More than the tags and lengths that wrap one span into a request (5 levels of at most 6 bytes)."""


_MAX_REJECTED = 1_000
"""Of one request; exporters send some hundred spans, and two bytes of nothing would make a dead letter each."""


class Piece:
    """Items of one trace, in the order they came, that one record will hold; the record is built when it is asked for,
    for it repeats their resources and scopes and so may be much larger than what they came in."""

    def __init__(self, signal: Signal, trace_id: bytes) -> None:
        self.trace_id = trace_id.hex()
        self.num_bytes = 0
        """At least those of the record."""
        self._signal = signal
        self.items: list[tuple[Any, Any, Any]] = []
        """Each behind its resource and scope."""

    def add_item(self, of_resource: Any, of_scope: Any, item: Any, *, head: int, size: int) -> None:
        """Takes one item; `head` bytes wrap it, `size` are its own."""
        last = self.items[-1] if self.items else (None, None, None)
        self.num_bytes += size + head * ((last[0] is not of_resource) + (last[1] is not of_scope))
        self.items.append((of_resource, of_scope, item))

    def value(self) -> bytes:
        """The bytes of an export request."""
        signal = self._signal
        request = signal.request()
        resource_of = scope_of = opened = scope = None
        for of_resource, of_scope, item in self.items:
            if resource_of is not of_resource:
                opened = getattr(request, signal.resources).add(schema_url=of_resource.schema_url)
                opened.resource.CopyFrom(of_resource.resource)
                resource_of, scope_of = of_resource, None
            if scope_of is not of_scope:
                scope = getattr(opened, signal.scopes).add(schema_url=of_scope.schema_url)
                scope.scope.CopyFrom(of_scope.scope)
                scope_of = of_scope
            getattr(scope, signal.fields).append(item)
        value: bytes = request.SerializeToString()
        return value


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A span or log record that cannot be a record of the log, by reference."""

    reason: Reason
    """`item_too_large`, `invalid_id`, `identity_conflict`, or `damaged`: a part of a request that cannot be read."""
    trace_id: str = ""
    span_id: str = ""
    num_bytes: int
    sha256: str


def add_identity(signal: Signal, request: Message, rollout: str, attempt: str) -> list[Rejected]:
    """Writes the identity that the URL path told into every resource.

    Returns:
        The items whose resource, or which themselves, claim another identity; they are taken out of the request.
    Raises:
        RecordError: these are more than a thousand.
    """
    told = {ROLLOUT_ID: rollout, ATTEMPT_ID: attempt}
    names = {**told, AGENTLIGHTNING_ROLLOUT_ID: rollout, AGENTLIGHTNING_ATTEMPT_ID: attempt}
    rejected: list[Rejected] = []
    for of_resource in getattr(request, signal.resources):
        attributes = of_resource.resource.attributes
        is_other = _differs(attributes, names)
        for of_scope in getattr(of_resource, signal.scopes):
            items = getattr(of_scope, signal.fields)
            found: dict[bool, list[Any]] = {True: [], False: []}
            for item in items:
                found[is_other or _differs(item.attributes, names)].append(item)
            if found[True]:
                _check_rejected(len(rejected) + len(found[True]))
                rejected.extend(_reject(item, Reason.IDENTITY_CONFLICT) for item in found[True])
                del items[:]
                items.extend(found[False])
        kept = [attribute for attribute in attributes if attribute.key not in told]
        del attributes[:]
        attributes.extend(kept)
        attributes.extend(KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in told.items())
    return rejected


def _differs(attributes: Iterable[KeyValue], names: dict[str, str]) -> bool:
    """Whether they claim another identity; one that is no text claims something too."""
    return any(pair.key in names and pair.value.string_value != names[pair.key] for pair in attributes)


def split(
    signal: Signal, request: Message, *, target_bytes: int, item_limit_bytes: int
) -> tuple[list[Piece], list[Rejected]]:
    """Splits by trace, then by size.

    Args:
        signal: what the request is of.
        request: the decoded request; not changed.
        target_bytes: a piece is closed before it would grow beyond this; one larger item is a piece of its own.
        item_limit_bytes: an item that, with its resource and scope, exceeds this is rejected.
    Raises:
        RecordError: more than a thousand would be rejected.
    """
    growing: dict[bytes, Piece] = {}
    pieces: list[Piece] = []
    rejected: list[Rejected] = []
    head, sized = 0, None
    for of_resource, of_scope, item in items_of(signal, request):
        _check_rejected(len(rejected))
        if of_scope is not sized:
            # Once a scope: of a large resource with many items it would take its square.
            sized = of_scope
            head = of_resource.resource.ByteSize() + of_scope.scope.ByteSize()
            head += len(of_resource.schema_url) + len(of_scope.schema_url) + _ENVELOPE_BYTES
        # A log record of no trace has no ids, or zeros.
        trace_id: bytes = item.trace_id if any(item.trace_id) else b""
        has_ids = len(trace_id) == 16 and len(item.span_id) == 8
        if not has_ids and (signal.requires_ids or len(trace_id) not in (0, 16) or len(item.span_id) not in (0, 8)):
            rejected.append(_reject(item, Reason.INVALID_ID))
            continue
        size = item.ByteSize() + _ENVELOPE_BYTES
        if head + size > item_limit_bytes:
            rejected.append(_reject(item, Reason.ITEM_TOO_LARGE))
            continue
        piece = growing.get(trace_id)
        if piece is None or piece.num_bytes + head + size > target_bytes:
            piece = growing[trace_id] = Piece(signal, trace_id)
            pieces.append(piece)
        piece.add_item(of_resource, of_scope, item, head=head, size=size)
    return pieces, rejected


def _check_rejected(num: int) -> None:
    if num > _MAX_REJECTED:
        raise RecordError(f"expected items that records can hold, got more than {_MAX_REJECTED} others")


def _reject(item: Any, reason: Reason) -> Rejected:
    data = item.SerializeToString()
    return Rejected(
        reason=reason,
        trace_id=item.trace_id.hex()[:64],
        span_id=item.span_id.hex()[:32],
        num_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
