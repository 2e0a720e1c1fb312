"""What a call is joined to spans by, whoever answered it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tracegrad.schemas.records.calls import ToolCall

__all__ = ["Asked"]


class Asked(Protocol):
    """What a call is joined by."""

    @property
    def call_id(self) -> str:
        """The response id that the agent saw."""

    @property
    def key(self) -> str:
        """Of its conversation; calls of one key are in order."""

    @property
    def trace_id(self) -> str | None:
        """Of the caller's span, as far as it is known."""

    @property
    def parent_span_id(self) -> str | None:
        """The caller's span."""

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        """What the answer asks for; their ids count."""

    @property
    def content(self) -> str | None:
        """The answer's text; None: it has none, or it is not known."""
