"""The dialects, tried in order: the first that understands a span reads it. A new dialect is a new row."""

from __future__ import annotations

from tracegrad.schemas.records.facts import SpanKind

from .dialect import Dialect, Reading, SpanView, ToolErrorText
from .openinference import OpenInference
from .otel_genai import OtelGenAi

__all__ = ["DIALECTS", "KEYS", "read_span"]

DIALECTS: tuple[Dialect, ...] = (OtelGenAi(), OpenInference())

KEYS: frozenset[str] = frozenset().union(*(dialect.keys for dialect in DIALECTS))
"""Every attribute that some dialect reads."""


def read_span(span: SpanView, is_error: ToolErrorText) -> tuple[str, Reading]:
    """(dialect, reading); a span that no dialect understands keeps only its place in the tree."""
    for dialect in DIALECTS:
        reading = dialect.read(span, is_error)
        if reading is not None:
            return dialect.name, reading
    return "none", Reading(kind=SpanKind.OTHER)
