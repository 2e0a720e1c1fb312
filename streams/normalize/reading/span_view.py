"""One span as dialects see it. In: what `read_spans.py` decoded. Out: a SpanView, a plain value."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tracegrad.schemas.otlp.values import AttributeValue

MAX_TEXT = 200
"""Characters kept of a name or an id, so that one attribute cannot swell a fact."""


class SpanView(msgspec.Struct, frozen=True, kw_only=True):
    """What dialects may look at."""

    name: str
    attributes: Mapping[str, AttributeValue]
    """Those that some dialect names."""
    status: int
    """0 unset, 1 ok, 2 error."""
    has_exception: bool
    """Whether it recorded an exception event; no failure by itself."""
    is_cut: bool
    """Whether the SDK dropped attributes, or the span never ended."""
    scope: str = ""
    """Name of the instrumentation that made it."""
    is_server: bool = False
    """Whether it serves a request that came from elsewhere."""
    events: Mapping[str, Mapping[str, AttributeValue]] = {}
    """The last event of each name that some dialect names, by name: its attributes."""
    message_events: tuple[tuple[str, Mapping[str, AttributeValue]], ...] = ()
    """Its events that hold messages, in order, with all their attributes; only where content is read."""
    hints: Mapping[str, str] = {}
    """Names of agents that it bears, as in SpanFact."""

    def text(self, *keys: str) -> str | None:
        """The first of these attributes that is a text with something in it, cut to a sane length for names and ids."""
        for key in keys:
            value = self.attributes.get(key)
            if isinstance(value, str) and value:
                return value[:MAX_TEXT]
        return None

    def value(self, *keys: str) -> AttributeValue | None:
        """The first of these attributes that is there."""
        return next((self.attributes[key] for key in keys if key in self.attributes), None)
