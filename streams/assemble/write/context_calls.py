"""What other models answered an episode's agents, joined to its spans as calls are.

In: the facts of such calls in their order, the tree of the episode's spans. Out: their records, joined by the ids that
the upstream gave. Invariant: the policy's calls take no span from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracegrad.schemas.records.calls import ToolCall, UpstreamCall
from tracegrad.schemas.records.episodes import ContextCall
from tracegrad.schemas.records.facts import ContextCallFact

from ..join.calls import join_calls
from ..join.content import UpstreamAnswer
from ..join.span_tree import SpanTree

_KEPT = tuple(set(ContextCall.__struct_fields__) & set(UpstreamCall.__struct_fields__))
"""What is on the log and stays in the episode, under the same names."""


def upstream_answers(facts: Iterable[ContextCallFact]) -> list[UpstreamAnswer]:
    """What each is joined by, in the order of the facts."""
    return [
        UpstreamAnswer(
            call_id=fact.call.response_id or fact.call.call_id,
            key=fact.call.key,
            trace_id=fact.call.trace_id,
            parent_span_id=fact.call.parent_span_id,
            tool_calls=tuple(ToolCall(id=id_, name="", arguments="") for id_ in fact.call.tool_call_ids),
        )
        for fact in facts
    ]


def context_calls(facts: Sequence[ContextCallFact], tree: SpanTree) -> tuple[ContextCall, ...]:
    """In the order of the facts."""
    return tuple(
        ContextCall(
            **{name: getattr(fact.call, name) for name in _KEPT},
            agent=match.agent,
            joined_by=match.joined_by,
            named_by=match.named_by,
        )
        for fact, match in zip(facts, join_calls(upstream_answers(facts), tree) if facts else (), strict=True)
    )
