"""One span as dialects see it. In: what `read_spans.py` decoded. Out: a SpanView, a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["MAX_TEXT", "AttributeValue", "SpanView"]

AttributeValue = str | bool | int | float | list[Any] | dict[str, Any]
MAX_TEXT = 200
"""Characters kept of a name or an id, so that one attribute cannot swell a fact."""


class SpanView(msgspec.Struct, frozen=True, kw_only=True):
    """What dialects may look at."""

    name: str
    attributes: Mapping[str, AttributeValue]
    status: int
    """0 unset, 1 ok, 2 error."""
    has_exception: bool
    """Whether it recorded an exception event; no failure by itself."""
    is_cut: bool
    """Whether the SDK dropped attributes, or the span never ended."""

    def text(self, key: str) -> str | None:
        """The attribute when it is a text with something in it, cut to a sane length for names and ids."""
        value = self.attributes.get(key)
        return value[:MAX_TEXT] if isinstance(value, str) and value else None
