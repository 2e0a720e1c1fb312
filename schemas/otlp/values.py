"""Attributes and bodies of spans and log records, as Python's own types.

In: protobuf's values. Out: plain ones. Pure. Invariant: bytes, what is empty, and what is nested deeper than 8 levels
hold no value, so that no sender makes a fact deep or a reader recurse without end.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

AttributeValue = str | bool | int | float | list[Any] | dict[str, Any]
_MAX_NESTING = 8


def attributes_of(pairs: Iterable[KeyValue], wanted: Container[str]) -> dict[str, AttributeValue]:
    """The wanted attributes that hold a value; the last one of a name wins."""
    found = {}
    for pair in pairs:
        key = pair.key
        if key in wanted:
            # Most are texts or numbers, which are there at once.
            held = pair.value
            value = held.string_value or held.int_value or plain(held)
            if value is not None:
                found[key] = value
    return found


def plain(value: AnyValue, depth: int = 0) -> Any:
    """A text, number, list or mapping; None where there is no value."""
    kind = value.WhichOneof("value")
    if depth > _MAX_NESTING or kind in (None, "bytes_value"):
        return None
    if kind == "array_value":
        return [plain(item, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: plain(pair.value, depth + 1) for pair in value.kvlist_value.values}
    return getattr(value, kind)
