"""What can still be read of an OTLP request that does not parse: one text that is no UTF-8, which exporters in C++ and
PHP send, must not cost the other spans.

In: the bytes of a request of spans or log records in protobuf. Out: a request of every item that parses, and what was
left out.
Invariants: an item is taken whole or not at all; a request that parses is the one that protobuf reads; the work is a
few passes over the bytes, and a bounded number of fields.
Failure: UndecodableError (`undecodable`): lengths do not chain up, so where the next item begins is not known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from ..errors import RecordError, UndecodableError
from ..reasons import Reason
from .signal import Signal, json_key, parsed

MAX_LOST = 1_000
"""Beyond it a request is not damaged but none."""
_MAX_FIELDS = 200_000
"""Looked at one by one, of some 5 us each: a body of 20 MiB could have ten million."""
_WALKED = frozenset(("ResourceSpans", "ResourceLogs", "Resource", "ScopeSpans", "ScopeLogs"))
"""Messages of which a part may be left out; all others are whole or lost."""
_SIZES = {1: 8, 5: 4}
"""Bytes of a field without a length, by its wire type."""


class LostPart(NamedTuple):
    """What could not be read, by reference: an item, or an attribute of a resource."""

    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> LostPart:
        """The reference to these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


class SalvagedRequest(NamedTuple):
    """What was made of a request."""

    request: Any
    lost: tuple[LostPart, ...] = ()


def salvage(signal: Signal, value: bytes | None) -> SalvagedRequest:
    """Raises UndecodableError when nothing can be read."""
    data = value or b""
    try:
        return SalvagedRequest(parsed(signal, data))
    except UndecodableError:
        if json_key(data):
            raise
        request, lost = signal.request(), list[LostPart]()
        _merge(request, data, lost, count(1))
        return SalvagedRequest(request, tuple(lost))


def damaged(lost: tuple[LostPart, ...]) -> RecordError | None:
    """Why a request is a dead letter although the rest of it was read; None: nothing was lost."""
    if not lost:
        return None
    num_bytes = sum(part.num_bytes for part in lost)
    return RecordError(
        f"expected an OTLP request, got one of which {len(lost)} parts of {num_bytes} bytes cannot be read",
        reason=Reason.DAMAGED,
    )


def _merge(message: Message, data: bytes, lost: list[LostPart], num_fields: Iterator[int]) -> None:
    """Adds the fields of a message that parse, field by field."""
    for number, start, begin, end in _fields(data, num_fields):
        one = type(message)()
        try:
            one.ParseFromString(data[start:end])
        except DecodeError:
            field = message.DESCRIPTOR.fields_by_number.get(number)
            if field is not None and field.message_type is not None and field.message_type.name in _WALKED:
                part = getattr(message, field.name)
                _merge(part if isinstance(part, Message) else part.add(), data[begin:end], lost, num_fields)
            elif len(lost) < MAX_LOST:
                lost.append(LostPart.of(data[begin:end]))
            else:
                raise _refusal(f"{MAX_LOST} damaged parts at most, got more") from None
        else:
            message.MergeFrom(one)


def _fields(data: bytes, num_fields: Iterator[int]) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, start of the content and end of each field. Raises UndecodableError where they do not chain up."""
    at = 0
    while at < len(data):
        if next(num_fields) > _MAX_FIELDS:
            raise _refusal(f"{_MAX_FIELDS} fields at most, got more")
        try:
            tag, begin = _DecodeVarint(data, at)
            if tag & 7 == 2:
                length, begin = _DecodeVarint(data, begin)
                end = begin + length
            elif tag & 7:
                end = begin + _SIZES.get(tag & 7, len(data))
            else:
                _, end = _DecodeVarint(data, begin)
        except (IndexError, DecodeError):
            end = len(data) + 1
        if end > len(data) or not tag >> 3:
            raise _refusal("whole fields, got lengths that do not chain up")
        yield tag >> 3, at, begin, end
        at = end


def _refusal(what: str) -> UndecodableError:
    return UndecodableError(f"expected an OTLP request of {what}", reason=Reason.UNDECODABLE)
