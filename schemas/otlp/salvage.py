"""What can still be read of an OTLP request that does not decode: one damaged byte must not cost the other spans.

In: the bytes of a request of spans or log records. Out: a request of every item that can be read, and what could not.
Invariants: an item is taken whole or not at all, and only with ids as its signal has them; a request that decodes and
hides nothing is the one that protobuf reads; the work is bounded by the request's size and, for megabytes of fields
that nobody knows must not hold up a gateway, by a number of steps: what lies behind the last one is lost in one part.
Fields that chain up exactly are walked; where a length or a tag is damaged, items are looked for by how they begin, as
every exporter writes fields in their order; the way that finds more is taken. An attribute of a resource that cannot be
read is left out, the others are kept.
Failure: UndecodableError (`undecodable`), nothing can be read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ..errors import RecordError, UndecodableError
from .signal import Signal, items_of, parsed

__all__ = ["DAMAGED", "MAX_LOST", "Lost", "Salvaged", "damaged", "salvage"]

DAMAGED = "damaged"
"""The reason of dead letters for what is lost of a request that was read otherwise."""
_LENGTH = 2
"""The wire type of what has a length: messages and texts."""
_WORK = 8
"""Bytes that may be tried for each of the request's own."""
_MAX_STEPS = 200_000
"""Fields, and what may be the beginning of something, that are looked at one by one, of some 2 us each. A request of
20 MiB has about as many items, were each of a hundred bytes."""
_MAX_WRAPS = 50_000
"""Of resources and scopes; a request of more is no exporter's, and nothing is looked for in it."""
MAX_LOST = 1_000
"""Beyond it a request is not damaged but none."""
_MAX_DEPTH = 2
"""Of requests within requests: behind a damaged length one resource seems to hold the next."""
_LISTED_BYTES = 1024 * 1024
"""Of a request whose unknown fields are listed, which is quick and takes fifty times their bytes."""
_VARINT = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_STARTS = {
    "spans": re.compile(rb"\x12(" + _VARINT + rb")(?=\x0a\x10.{16}\x12\x08)", re.DOTALL),
    "log records": re.compile(rb"\x12(" + _VARINT + rb")(?=\x09.{8}[\x10\x1a\x2a\x32\x3a\x40\x45\x4a\x59])", re.DOTALL),
}
"""How an item begins within its scope: tag and length, then its first fields, ids or the time."""
_RESOURCE = re.compile(rb"\x0a(" + _VARINT + rb")(?=\x0a)")


class Lost(NamedTuple):
    """What could not be read, by reference: an item, or a resource in part."""

    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Lost:
        """The reference to these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


class Salvaged(NamedTuple):
    """What was made of a request."""

    request: Any
    lost: tuple[Lost, ...] = ()


def salvage(signal: Signal, value: bytes | None) -> Salvaged:
    """Raises UndecodableError when nothing can be read."""
    data = value or b""
    request = damage = None
    num_read = 0
    try:
        request = parsed(signal, data)
        if not _hides_something(signal, request, len(data)):
            return Salvaged(request)
        num_read = sum(_is_whole(signal, item) for _, _, item in items_of(signal, request))
    except UndecodableError as error:
        damage = error
    walks = _Walk(signal, data), _Walk(signal, data)
    walks[0].go(walks[0].request_at)
    walks[1].go(walks[1].scan)
    best = max(walks, key=lambda walk: walk.num_items)
    if best.num_items > num_read:
        return Salvaged(best.request, tuple(best.lost) or (Lost.of(data),))
    if damage is not None:
        raise damage
    return Salvaged(request)


def damaged(lost: tuple[Lost, ...]) -> RecordError | None:
    """Why a request is a dead letter although the rest of it was read; None: nothing was lost."""
    if not lost:
        return None
    num_bytes = sum(part.num_bytes for part in lost)
    return RecordError(
        f"expected an OTLP request, got one of which {len(lost)} parts of {num_bytes} bytes cannot be read",
        reason=DAMAGED,
    )


def _hides_something(signal: Signal, request: Message, num_bytes: int) -> bool:
    """Whether items may lie where protobuf does not look: in fields that it does not know, or in what it takes for an
    id, as when a damaged length swallows the next item."""
    wraps = [request]
    for of_resource in getattr(request, signal.resources):
        of_scopes = getattr(of_resource, signal.scopes)
        if len(wraps) + len(of_scopes) > _MAX_WRAPS:
            return False
        wraps += [of_resource, *of_scopes]
    if any(_has_unknown(wrap) if num_bytes > _LISTED_BYTES else len(UnknownFieldSet(wrap)) for wrap in wraps):
        return True
    return any(len(item.span_id) > 8 or len(item.trace_id) > 16 for _, _, item in items_of(signal, request))


def _has_unknown(wrap: Message) -> bool:
    """Whether a message of messages and texts has fields that protobuf does not know, without a list of them."""
    known = 0
    for _, value in wrap.ListFields():
        for one in (value,) if isinstance(value, str | Message) else value:
            size = len(one.encode()) if isinstance(one, str) else one.ByteSize()
            known += 1 + (max(size.bit_length(), 1) + 6) // 7 + size
    return bool(wrap.ByteSize() != known)


def _is_whole(signal: Signal, item: Any) -> bool:
    ids = len(item.trace_id), len(item.span_id)
    # Nearly any bytes are a log record without ids, if fields may be unknown.
    return ids == (16, 8) or (not signal.requires_ids and ids in ((0, 0), (16, 0)) and not len(UnknownFieldSet(item)))


class _Part(NamedTuple):
    """One field of a message, or the rest of it from where its fields no longer chain up."""

    number: int
    """0: such a rest."""
    start: int
    end: int


class _Walk:
    """One pass over a damaged request; what is read is added to `request`."""

    def __init__(self, signal: Signal, data: bytes) -> None:
        self.request = signal.request()
        self.lost: list[Lost] = []
        self.num_items = 0
        self._signal = signal
        self._data = data
        self._left = _WORK * len(data)
        self._steps_left = _MAX_STEPS
        self._reached = 0
        """Where the last item ended that was taken or lost."""
        self._resource = Resource()
        """Of the items to come."""
        self._scope: Any = None
        """The message that they are added to, or None before the first."""

    def go(self, way: Callable[[int, int], None]) -> None:
        """As far as the work may go; what it does not come to is one more part that is lost."""
        try:
            way(0, len(self._data))
        except UndecodableError:
            if self._reached < len(self._data):
                self.lost.append(Lost.of(self._data[self._reached :]))

    def request_at(self, start: int, end: int) -> None:
        """The whole request."""
        for part in self._parts(start, end):
            if part.number:
                self._begin_resource(Resource())
            self._resource_at(part.start, part.end)

    def _parts(self, start: int, end: int) -> Iterator[_Part]:
        """The fields with a length, as far as they chain up; then the rest."""
        at = start
        while at < end:
            self._step()
            try:
                tag, begin = _DecodeVarint(self._data, at)
                kind = tag & 7
                length, begin = (
                    _DecodeVarint(self._data, begin) if kind == _LENGTH else ({1: 8, 5: 4}.get(kind, -1), begin)
                )
                if kind == 0:
                    _, begin = _DecodeVarint(self._data, begin)
                    length = 0
            except (IndexError, DecodeError):
                length, begin, kind = -1, end, -1
            if length < 0 or begin + length > end or not tag >> 3:
                # A damaged length hides where its content begins; that of a damaged tag is looked for.
                yield _Part(0, begin if kind == _LENGTH and begin < end else at, end)
                return
            if kind == _LENGTH:
                yield _Part(tag >> 3, begin, begin + length)
            at = begin + length

    def _resource_at(self, start: int, end: int, depth: int = 1) -> None:
        has_resource = False
        for part in self._parts(start, end):
            if part.number == 1 and has_resource and depth < _MAX_DEPTH:
                self._begin_resource(Resource())
                self._resource_at(part.start, part.end, depth + 1)
            elif part.number == 1 and not has_resource:
                self._begin_resource(self._read_resource(part.start, part.end))
                has_resource = True
            elif part.number < 2:
                self.scan(part.start, part.end)
            elif part.number != 3 or not self._is_text(part):
                self._scope_at(part.start, part.end)

    def _scope_at(self, start: int, end: int) -> None:
        self._scope = None
        for part in self._parts(start, end):
            if part.number == 1:
                scope = InstrumentationScope()
                if self._reads(scope, part.start, part.end):
                    self._begin_scope().scope.CopyFrom(scope)
            elif part.number == 0:
                self.scan(part.start, end)
            elif part.number != 3 or not self._is_text(part):
                self._item_at(part.start, part.end)

    def _item_at(self, start: int, end: int) -> None:
        if not self._takes(start, end):
            self._lose(start, end)
            # What a damaged length made it swallow; its own contents are no resource.
            outside = self._resource, self._scope
            self.scan(start, end)
            self._resource, self._scope = outside

    def scan(self, start: int, end: int) -> None:
        """Looks for items by how they begin, and before each for a resource that begins there."""
        at = gap = start
        while match := _STARTS[self._signal.items].search(self._data, at, end):
            self._step()
            length, begin = _DecodeVarint(self._data, match.start(1))
            self._resource_between(gap, match.start())
            if begin + length <= end and self._takes(begin, begin + length):
                at = gap = begin + length
            else:
                self._lose(begin, min(begin + length, end))
                at = match.start() + 1

    def _resource_between(self, start: int, end: int) -> None:
        # The same gap is looked into again after each item that is none.
        self._spend(end - start)
        for match in _RESOURCE.finditer(self._data, start, end):
            self._step()
            length, begin = _DecodeVarint(self._data, match.start(1))
            resource = Resource()
            is_followed = begin + length < end and self._data[begin + length] == 0x12
            if is_followed and self._reads(resource, begin, begin + length):
                self._begin_resource(resource)
                return

    def _read_resource(self, start: int, end: int) -> Resource:
        """Whole, else those of its attributes that can be read."""
        resource = Resource()
        if not self._reads(resource, start, end):
            self._lose(start, end)
            resource = Resource()
            for part in self._parts(start, end):
                pair = KeyValue()
                if part.number == 1 and self._reads(pair, part.start, part.end):
                    resource.attributes.append(pair)
        return resource

    def _takes(self, start: int, end: int) -> bool:
        item = getattr(self._begin_scope(), self._signal.fields).add()
        if self._reads(item, start, end) and _is_whole(self._signal, item):
            self.num_items += 1
            self._reached = max(self._reached, end)
            return True
        del getattr(self._scope, self._signal.fields)[-1]
        return False

    def _reads(self, message: Message, start: int, end: int) -> bool:
        self._spend(end - start)
        try:
            message.ParseFromString(self._data[start:end])
        except DecodeError:
            return False
        return True

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise UndecodableError(f"expected a request, got more than {_MAX_STEPS} fields", reason="undecodable")

    def _spend(self, num_bytes: int) -> None:
        self._left -= num_bytes
        if self._left < 0:
            raise UndecodableError("expected an OTLP request, got one too damaged to read", reason="undecodable")

    def _lose(self, start: int, end: int) -> None:
        self._spend(end - start)
        self.lost.append(Lost.of(self._data[start:end]))
        self._reached = max(self._reached, end)
        if len(self.lost) > MAX_LOST:
            raise UndecodableError(f"expected a request, got more than {MAX_LOST} damaged parts", reason="undecodable")

    def _is_text(self, part: _Part) -> bool:
        """Whether it can be a schema's address, rather than an item under a damaged tag."""
        return self._data[part.start : part.end].isascii()

    def _begin_resource(self, resource: Resource) -> None:
        self._resource, self._scope = resource, None

    def _begin_scope(self) -> Any:
        if self._scope is None:
            of_resource = getattr(self.request, self._signal.resources).add()
            of_resource.resource.CopyFrom(self._resource)
            self._scope = getattr(of_resource, self._signal.scopes).add()
        return self._scope
