"""What a dialect is: a reading of one span's attributes as agent, tool or LLM span.

In: a SpanView, holding only the attributes that some dialect names. Out: a Reading, or None when the span does not
speak the dialect. A dialect never raises for odd values. The status of a tool is judged in one place, here, from
the strongest sign to the weakest; unknown is not failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from tracegrad.schemas.records.facts import SpanKind, ToolStatus

__all__ = ["AttributeValue", "Dialect", "Reading", "SpanView", "ToolErrorText", "read_tool"]

AttributeValue = str | bool | int | float
MAX_TEXT = 200
"""Characters kept of a name or an id, so that one attribute cannot swell a fact."""

STATUS_OK = 1
STATUS_ERROR = 2
_EXCEPTION_LINE = re.compile(r"[\s\"']*[A-Za-z_.]*(?:Error|Exception)\b\s*[:(]")


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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a span says in its dialect; fields as in SpanFact."""

    kind: SpanKind
    agent_name: str | None = None
    response_id: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    tool_status: ToolStatus = ToolStatus.UNKNOWN
    tool_status_from: str = ""
    error_type: str | None = None


class ToolErrorText:
    """Whether a tool's result begins like an error, for frameworks that say so in the text only."""

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        words = "|".join(re.escape(prefix) for prefix in prefixes)
        # Not before a letter or a hyphen: "errors found: none" and "error-free" report success.
        self._words = re.compile(rf"[\s\"']*(?:{words})(?![\w-])", re.IGNORECASE) if words else None

    def __call__(self, result: str) -> bool:
        return bool((self._words and self._words.match(result)) or _EXCEPTION_LINE.match(result))


class Dialect(NamedTuple):
    """One row of the table in `read_spans.py`."""

    name: str
    keys: frozenset[str]
    """The attributes that it reads; others are not even decoded."""
    read: Callable[[SpanView, ToolErrorText], Reading | None]
    """The span's meaning, or None when it does not speak this dialect."""


def read_tool(
    span: SpanView,
    is_error: ToolErrorText,
    *,
    name: str,
    call_id: str | None,
    error_type: str | None,
    declared: ToolStatus = ToolStatus.UNKNOWN,
    result: object,
) -> Reading:
    """The reading of a tool execution, its status judged.

    Failure: the span's status is an error; an attribute says so (`error.type`, the framework's own status field);
    the result, where it is a text, begins like an error. Success: the span ended without any of these, as the
    conventions ask of instrumentations (an unset status is not an error). A span that was cut may have lost the sign:
    unknown.
    """
    status, status_from = ToolStatus.UNKNOWN, ""
    if span.status == STATUS_ERROR:
        status, status_from = ToolStatus.FAILED, "exception" if span.has_exception else "span_status"
    elif error_type is not None or declared is ToolStatus.FAILED:
        status, status_from = ToolStatus.FAILED, "attribute"
    elif isinstance(result, str) and is_error(result):
        status, status_from = ToolStatus.FAILED, "text"
    elif declared is ToolStatus.SUCCEEDED:
        status, status_from = ToolStatus.SUCCEEDED, "attribute"
    elif span.status == STATUS_OK or not span.is_cut:
        status, status_from = ToolStatus.SUCCEEDED, "span_status"
    return Reading(
        kind=SpanKind.TOOL,
        tool_name=name,
        tool_call_id=call_id,
        tool_status=status,
        tool_status_from=status_from,
        error_type=error_type,
    )
