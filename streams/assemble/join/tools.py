"""Joins tool executions to the calls that asked for them.

In: calls in their order on the log, how each was joined (calls.py), the executions of the episode (stacked_tools.py:
which spans tell of one). Out: for each call its own. An execution matches the request whose minted id it repeats,
whatever the clocks say; one without any id an open request whose answer was there when it began (by the agent's own
clock; where the answer's time is not known, any); else none. Either way request and execution name the same tool and a
request has one execution: AIR pays nothing else.
Invariant: the outcome does not depend on the order of the spans, and n turns cost O(n log n).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container, Iterable, Sequence
from itertools import count
from typing import NamedTuple

from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.facts import SpanFact

from .calls import CallJoin
from .span_tree import SpanTree
from .stacked_tools import leaf_rank


def tool_spans(tools: Iterable[SpanFact], tree: SpanTree) -> list[SpanFact]:
    """The executions by start; of those with one tool-call id only the leaf-most, then the last."""
    chosen: dict[str, SpanFact] = {}
    for span in tools:
        key = span.tool_call_id or f"{span.trace_id}/{span.span_id}"
        old = chosen.get(key)
        if old is None or leaf_rank(tree, span) > leaf_rank(tree, old):
            chosen[key] = span
    return sorted(chosen.values(), key=_by_start)


def _by_start(span: SpanFact) -> tuple[int, str, str]:
    return span.start_ns, span.trace_id, span.span_id


class _Request(NamedTuple):
    """A tool call in an answer, that an execution may claim."""

    call: int
    """Index of the call that asked."""
    id: str
    name: str


def join_tools(
    calls: Sequence[CallRecord],
    joined: Sequence[CallJoin],
    tools: Sequence[SpanFact],
    tree: SpanTree,
    *,
    answered: Container[str] = (),
) -> list[list[tuple[SpanFact, str]]]:
    """For each call, the executions that it asked for, by start, each with the tool-call id that it answers.

    `tools`: as `executions` of the tree; `answered`: tool-call ids that have an execution already.
    """
    asked = [_Request(index, asked.id, asked.name) for index, call in enumerate(calls) for asked in call.tool_calls]
    requests = [request for request in asked if request.id not in answered]
    by_id = {request.id: request for request in reversed(requests)}
    answers: dict[str, SpanFact] = {}
    for tool in (span for span in tools if span.tool_call_id in by_id):
        request = by_id[tool.tool_call_id or ""]
        old = answers.get(request.id)
        # Judged before one of several is chosen, so that a span which answers nothing displaces none that does. Nobody
        # knows an id before it is minted, so clocks, which may be another host's, only choose between several.
        if (tool.tool_name or tool.name) != request.name:
            continue
        own, asked_ns = calls[request.call].trace_id, joined[request.call].asked_ns or 0
        ranks = [
            (asked_ns <= one.start_ns, one.trace_id == own, leaf_rank(tree, one))
            for one in (old, tool)
            if one is not None
        ]
        if ranks[-1] == max(ranks):
            answers[request.id] = tool
    open_by_name: dict[str, _OpenRequests] = {}
    for request in requests:
        if request.id not in answers:
            open_by_name.setdefault(request.name, _OpenRequests()).add_request(
                request, joined[request.call].answered_ns
            )
    asked_for: list[list[tuple[SpanFact, str]]] = [[] for _ in calls]
    for tool in sorted((*answers.values(), *(tool for tool in tools if tool.tool_call_id is None)), key=_by_start):
        if tool.tool_call_id is not None:
            found: _Request | None = by_id[tool.tool_call_id]
        else:
            candidates = open_by_name.get(tool.tool_name or tool.name)
            found = candidates.pop_before(tool.start_ns) if candidates else None
        if found is not None:
            asked_for[found.call].append((tool, found.id))
    return asked_for


class _OpenRequests:
    """The open requests of one tool's name, for executions that come by start; n of each in O(n log n)."""

    def __init__(self) -> None:
        self._untimed: deque[_Request] = deque()
        self._later: list[tuple[int, int, _Request]] = []
        """(when its answer was there, its number, request), a heap; those of `_before` by (last call, first number)."""
        self._before: list[tuple[int, int, _Request]] = []
        self._numbers = count()

    def add_request(self, request: _Request, answered_ns: int | None) -> None:
        """One more, in the order of the calls."""
        if answered_ns is None:
            self._untimed.append(request)
        else:
            heapq.heappush(self._later, (answered_ns, next(self._numbers), request))

    def pop_before(self, start_ns: int) -> _Request | None:
        """The latest request that was answered before a tool began at `start_ns`, else the first one without times."""
        while self._later and self._later[0][0] <= start_ns:
            _, number, request = heapq.heappop(self._later)
            heapq.heappush(self._before, (-request.call, number, request))
        if self._before:
            return heapq.heappop(self._before)[2]
        return self._untimed.popleft() if self._untimed else None
