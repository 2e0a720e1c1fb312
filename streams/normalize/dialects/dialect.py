"""What a dialect is: a reading of one span's attributes as agent, tool or LLM span.

In: a SpanView, holding only the attributes that some dialect names. Out: a Reading, or None when the span does not
speak the dialect. A dialect never raises for odd values. A tool's outcome is judged in one place, `judge_tool.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tracegrad.schemas.records.facts import SpanKind, ToolStatus

from .judge_tool import ToolJudge
from .span_view import SpanView

__all__ = ["Dialect", "Reading"]


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
    output_digest: str | None = None
    requested_tool_call_ids: tuple[str, ...] = ()


class Dialect(NamedTuple):
    """One row of the table in `read_spans.py`."""

    name: str
    keys: frozenset[str]
    """The attributes that it reads, besides those that the judge reads; others are not even decoded."""
    read: Callable[[SpanView, ToolJudge], Reading | None]
    """The span's meaning, or None when it does not speak this dialect."""
