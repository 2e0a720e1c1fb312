"""Model's spans that repeat no response id, joined to calls by what was answered.

In: calls, spans, and which of both are joined already. Out: for a call's index, the spans that tell its answer. By the
tool-call ids that an answer asks for, since the gateway minted them; else by the answer's text, compared by digest:
where as many spans as calls tell it, none of the calls is joined already, and, if they are several, one span ended
before the next began, so that they are in order, as calls of one key are. Invariant: exact matches only; whatever is
ambiguous joins nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tracegrad.schemas.records.calls import CallRecord, ToolCall
from tracegrad.schemas.records.facts import SpanFact, SpanKind, digest_of

from .span_tree import SpanKey, SpanTree, span_key

_RUN_IDS = ("lc_run-", "run-")
"""How LangChain calls a message whose response id it has lost, as it does in streams."""


class UpstreamAnswer(NamedTuple):
    """Of a call that another model answered, what joins it to spans."""

    call_id: str
    """The response id that the agent saw."""
    key: str
    """Of its conversation; calls of one key are in order."""
    trace_id: str | None
    """Of the caller's span, as far as it is known."""
    parent_span_id: str | None
    """The caller's span."""
    tool_calls: tuple[ToolCall, ...]
    """What the answer asks for; their ids count."""
    content: None = None
    """The answer's text is not on the log."""


JoinableCall = CallRecord | UpstreamAnswer


def join_content(
    calls: Sequence[JoinableCall],
    joined: Sequence[bool],
    candidates: Iterable[SpanFact],
) -> dict[int, list[SpanFact]]:
    """Call's index -> spans. `joined`: which calls have a model's span; `candidates`: as unclaimed."""
    told: dict[int, list[SpanFact]] = {}
    minted = {asked.id: index for index, call in enumerate(calls) for asked in call.tool_calls}
    by_text: dict[str, list[SpanFact]] = {}
    for span in candidates:
        asking = {minted[id_] for id_ in span.requested_tool_call_ids if id_ in minted}
        if len(asking) == 1:
            told.setdefault(asking.pop(), []).append(span)
        elif not span.requested_tool_call_ids and span.output_digest is not None:
            by_text.setdefault(span.output_digest, []).append(span)
    if by_text:
        answers: dict[str, list[int]] = {}
        for index, call in enumerate(calls):
            if not call.tool_calls and (digest := digest_of(call.content)) in by_text:
                answers.setdefault(str(digest), []).append(index)
        for digest, indices in answers.items():
            found = sorted(by_text[digest], key=lambda span: (span.start_ns, *span_key(span)))
            is_ordered = all(one.end_ns <= other.start_ns for one, other in pairwise(found))
            is_ordered &= len({calls[index].key for index in indices}) == 1
            if len(found) == len(indices) and is_ordered and not any(joined[index] for index in indices):
                told.update((index, [span]) for index, span in zip(indices, found, strict=True))
    return told


def unclaimed(claimed: Sequence[SpanFact], tree: SpanTree) -> list[SpanFact]:
    """Model's spans of no known response, the innermost of stacked ones. `claimed`: those that are joined; what is
    around or within one of them tells of the same call as it does."""
    taken = {span_key(span) for span in claimed}
    around = _around(claimed, tree)
    open_ = []
    for span in tree.spans:
        if span.kind is SpanKind.LLM and (place := span_key(span)) not in taken and place not in around:
            parent = tree.parent(span)
            within = tree.above(parent).llm if parent is not None else None
            if within not in taken and not _names_a_call(span):
                open_.append(span)
    outer = _around(open_, tree)
    return [span for span in open_ if span_key(span) not in outer]


def _names_a_call(span: SpanFact) -> bool:
    """Whether it says itself which response it is of: another call than these. LangChain's own run ids name none."""
    return span.response_id is not None and not span.response_id.startswith(_RUN_IDS)


def _around(inner: Iterable[SpanFact], tree: SpanTree) -> set[SpanKey]:
    """The places of all model's spans around these."""
    found: set[SpanKey] = set()
    for span in inner:
        parent = tree.parent(span)
        place = tree.above(parent).llm if parent is not None else None
        while place is not None and place not in found:
            found.add(place)
            step = tree.get(*place)
            parent = tree.parent(step) if step is not None else None
            place = tree.above(parent).llm if parent is not None else None
    return found
