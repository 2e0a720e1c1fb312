"""What other models answered an episode's agents, joined to its spans as calls are.

In: the facts of such calls in their order, the episode's spans. Out: their records, joined by the ids that the upstream
gave. Invariant: they are joined apart from the policy's calls, of which they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracegrad.schemas.records.calls import ToolCall, UpstreamCall
from tracegrad.schemas.records.episodes import ContextCall
from tracegrad.schemas.records.facts import ContextCallFact, SpanFact

from .join.calls import join_calls

__all__ = ["context_calls"]

_KEPT = tuple(set(ContextCall.__struct_fields__) & set(UpstreamCall.__struct_fields__))
"""What is on the log and stays in the episode, under the same names."""


class _Asked(NamedTuple):
    """As Asked."""

    call_id: str
    key: str
    trace_id: str | None
    parent_span_id: str | None
    tool_calls: tuple[ToolCall, ...]
    content: str | None = None


def context_calls(facts: Iterable[ContextCallFact], spans: Sequence[SpanFact]) -> tuple[ContextCall, ...]:
    """In the order of the facts."""
    calls = [fact.call for fact in facts]
    asked = [
        _Asked(
            call_id=call.response_id or call.call_id,
            key=call.key,
            trace_id=call.trace_id,
            parent_span_id=call.parent_span_id,
            tool_calls=tuple(ToolCall(id=id_, name="", arguments="") for id_ in call.tool_call_ids),
        )
        for call in calls
    ]
    return tuple(
        ContextCall(
            **{name: getattr(call, name) for name in _KEPT},
            agent=match.agent,
            joined_by=match.joined_by,
            named_by=match.named_by,
        )
        for call, match in zip(calls, join_calls(asked, spans) if calls else (), strict=True)
    )
