"""Joins an episode's calls to its spans and to the agents that made them.

In: calls in their order on the log, the tree of their spans. Out: for each call what it was joined by, its agent, and
what named it. A call is joined by the first of: the response id that a model's span repeats; the model's span above the
one that `traceparent` names; a model's span that tells its answer (content.py), or fits it (fitting.py); the span that
`traceparent` names; a tool's span that repeats an id which the call minted; nothing (the call still trains). What it
was joined by names its agent (span_tree.py): of several model's spans the innermost agent, if each of the others set
that one to work.
Failing that, the episode's only agent is it, unless the same instrumentation shows the call outside of it, or spans
are missing that may be another's.
Invariant: wrong is worse than unknown, so names that disagree name nobody (`conflict`); the outcome does not depend on
the order of the spans, and n turns cost O(n log n). Broken or circular parents end a walk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.facts import SpanFact, SpanKind, digest_of

from .content import JoinableCall, join_content, unclaimed
from .fitting import join_fitting
from .span_tree import CONFLICT, NamedAgent, SpanTree, encloses, span_key

SOLE_AGENT = "sole_agent"


class CallJoin(NamedTuple):
    """How a call was matched."""

    agent: str | None
    joined_by: str
    """`response_id`, `traceparent`, `content`, `tool_call_id` or `none`."""
    answered_ns: int | None
    """When the agent had the answer, by its own clock: the end of the LLM span; None when no such span."""
    named_by: str = ""
    """What named the agent: a rung of `NamedAgent`, `sole_agent`; or `conflict`, `inside_tool`, or nothing, where it is
    unknown."""
    asked_ns: int | None = None
    """When the agent asked, by the same clock: the beginning of the LLM span."""


class _Anchors(NamedTuple):
    """The spans by which a call is in the tree."""

    answering: list[SpanFact]
    """Model's spans that repeat its response id."""
    around: SpanFact | None
    """The model's span above the caller."""
    telling: list[SpanFact]
    """Model's spans that tell its answer."""
    caller: SpanFact | None
    tools: list[SpanFact]

    @property
    def llm(self) -> list[SpanFact]:
        return [*self.answering, *((self.around,) if self.around else ()), *self.telling]

    @property
    def joined_by(self) -> str:
        if self.answering:
            return "response_id"
        if self.around is not None:
            return "traceparent"
        if self.telling:
            return "content"
        if self.caller is not None:
            return "traceparent"
        return "tool_call_id" if self.tools else "none"


def join_calls(calls: Sequence[JoinableCall], tree: SpanTree, *, others: Sequence[JoinableCall] = ()) -> list[CallJoin]:
    """How each call was matched, in the order of the calls.

    `others`: calls that other models answered; a span that is joined to one of them tells of no call.
    """
    # Behind them, so that an id which both name is the call's.
    calls = [*others, *calls]
    anchors = _anchors(calls, tree)
    named = [_named_by(found, tree, call.trace_id) for found, call in zip(anchors, calls, strict=True)]
    sole = next(iter(tree.agents)) if len(tree.agents) == 1 and tree.is_whole else None
    # An instrumentation that shows models under the agent also shows when one is not.
    shown = {span.dialect for found, name in zip(anchors, named, strict=True) if name for span in found.llm}
    joined = []
    for found, name in zip(anchors, named, strict=True):
        told = found.answering or found.telling
        asked_ns = min((span.start_ns for span in told), default=None)
        answered_ns = min((span.end_ns for span in told), default=None)
        agent, rung = (name.name, name.rung) if name is not None else (None, "")
        if name is None and sole is not None and not any(span.dialect in shown for span in found.llm):
            agent, rung = sole, SOLE_AGENT
        joined.append(CallJoin(agent, found.joined_by, answered_ns, rung, asked_ns))
    return joined[len(others) :]


def _anchors(calls: Sequence[JoinableCall], tree: SpanTree) -> list[_Anchors]:
    by_response: dict[str, list[SpanFact]] = {call.call_id: [] for call in calls}
    by_tool: dict[str, list[SpanFact]] = {asked.id: [] for call in calls for asked in call.tool_calls}
    for span in tree.spans:
        if span.kind is SpanKind.LLM and span.response_id in by_response:
            by_response[span.response_id].append(span)
        elif span.kind is SpanKind.TOOL and span.tool_call_id in by_tool:
            by_tool[span.tool_call_id].append(span)
    callers = [tree.get(call.trace_id, call.parent_span_id) for call in calls]
    around = [_llm_around(caller, tree) for caller in callers]
    claimed = [span for answering in by_response.values() for span in answering]
    claimed += [span for span in around if span is not None]
    joined = [bool(by_response[call.call_id]) or llm is not None for call, llm in zip(calls, around, strict=True)]
    candidates = unclaimed(claimed, tree)
    telling = join_content(calls, joined, candidates)
    anchors = [
        _Anchors(
            answering=by_response[call.call_id],
            around=around[index],
            telling=telling.get(index, []),
            caller=callers[index],
            tools=[span for asked in call.tool_calls for span in by_tool[asked.id]],
        )
        for index, call in enumerate(calls)
    ]
    taken = {span_key(span) for found in telling.values() for span in found}
    for index, span in _fitting(calls, anchors, [one for one in candidates if span_key(one) not in taken], tree):
        anchors[index] = anchors[index]._replace(telling=[span])
    return anchors


def _fitting(
    calls: Sequence[JoinableCall], anchors: Sequence[_Anchors], spans: Sequence[SpanFact], tree: SpanTree
) -> Iterable[tuple[int, SpanFact]]:
    """For the policy's calls that no model's span is known of; of others' the tokens are not known."""
    if not spans:
        return ()
    left = {
        index: call
        for index, (call, found) in enumerate(zip(calls, anchors, strict=True))
        if not found.llm and isinstance(call, CallRecord)
    }
    texts = {digest_of(call.content) for index, call in enumerate(calls) if index not in left}
    runs = {
        str(call.call_id): named.place
        for call, found in zip(calls, anchors, strict=True)
        if (named := _named_by(found, tree, call.trace_id)) is not None and named.name is not None
    }
    return join_fitting(left, spans, tree, runs=runs, texts=texts).items()


def _llm_around(caller: SpanFact | None, tree: SpanTree) -> SpanFact | None:
    place = tree.above(caller).llm if caller is not None else None
    return tree.get(*place) if place is not None else None


def _named_by(anchors: _Anchors, tree: SpanTree, trace: str | None) -> NamedAgent | None:
    """Who made the call; the first kind of anchors that names anybody tells, those of the call's own trace before
    others, which anybody can make who knows its id."""
    levels = (anchors.llm, [anchors.caller] if anchors.caller is not None else [], anchors.tools)
    for is_own, level in itertools.product((True, False), levels):
        spans = [span for span in level if (span.trace_id == trace) is is_own]
        names = [(span, named) for span in spans if (named := tree.above(span).named) is not None]
        # A tool that bears an agent's name is the agent, called as a tool; it did not make the call.
        found = _agreed(
            named for span, named in names if span.kind is not SpanKind.TOOL or named.name != span.tool_name
        )
        if found is not None:
            return found
    return None


def _agreed(names: Iterable[NamedAgent]) -> NamedAgent | None:
    """The innermost of several, if each of the others is the same or set that one to work; else a conflict."""
    best: NamedAgent | None = None
    # Not a set of them: each holds all that is above it.
    for _, named in sorted({(one.place, one.name or ""): one for one in names}.items(), key=itemgetter(0)):
        if best is None or encloses(best, named):
            best = named
        elif named.rung == CONFLICT or (named.name != best.name and not encloses(named, best)):
            return NamedAgent(None, CONFLICT, named.place, None)
    return best
