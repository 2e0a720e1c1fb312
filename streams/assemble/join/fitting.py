"""Calls joined to model's spans that repeat no id of their answers, by what both say of the same answer.

In: calls and spans that nothing else has joined. Out: for a call's index, its span. Two fit by the answer's text, by
its numbers of tokens, or because the span that the request named (the HTTP client's, by the agent's own clock) lies
within the model's; they do not fit where any of these says otherwise, or where two agents are at work. Of several that
fit, those of the run of an agent count whose conversation the call goes on with. Invariant: what fits several ways
joins nothing; a place in time alone counts only where it accounts for every span and every request of the service.
Failure: more than _MAX_ALIKE that look alike are left alone, so n turns cost O(n log n).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from tracegrad.schemas.records.calls import TOKEN_BYTES, CallRecord
from tracegrad.schemas.records.facts import SpanFact, digest_of

from .span_tree import SpanKey, SpanTree, span_key

_MAX_ALIKE = 64
"""Spans that one call is compared with."""


def join_fitting(
    calls: Mapping[int, CallRecord],
    spans: Sequence[SpanFact],
    tree: SpanTree,
    *,
    runs: Mapping[str, SpanKey],
    texts: Container[str | None],
) -> dict[int, SpanFact]:
    """Call's index -> its span.

    `calls`: those that nothing has joined; `spans`: the innermost, likewise. `runs`: of other calls, by id, the place
    of the agent that made them. `texts`: digests of their answers, which a span may tell again.
    """
    if not calls or not spans:
        return {}
    spans = sorted(spans, key=lambda span: (span.start_ns, *span_key(span)))
    fits = _Fits(spans, tree, runs=runs, texts=texts)
    edges = {index: found for index, call in calls.items() if (found := fits.of(call))}
    whole = _whole_services(calls, spans, edges, tree)
    joined: dict[int, SpanFact] = {}
    for group in _groups(edges):
        pairs = _pairs(group, calls, spans)
        if all(edges[index][span] or spans[span].service in whole for index, span in pairs.items()):
            joined.update((index, spans[span]) for index, span in pairs.items())
    return joined


class _Fits:
    """Which spans a call fits: their numbers, and whether more than the place in time says so."""

    def __init__(
        self, spans: Sequence[SpanFact], tree: SpanTree, *, runs: Mapping[str, SpanKey], texts: Container[str | None]
    ) -> None:
        self._spans, self._tree, self._runs = spans, tree, runs
        self._starts = [span.start_ns for span in spans]
        self._ends = list(accumulate((span.end_ns for span in spans), max))
        self._by_text: dict[str, list[int]] = defaultdict(list)
        self._by_tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, span in enumerate(spans):
            if span.output_digest is not None and span.output_digest not in texts:
                self._by_text[span.output_digest].append(number)
            if (tokens := _tokens_of(span)) is not None:
                self._by_tokens[tokens].append(number)

    def of(self, call: CallRecord) -> dict[int, bool]:
        """Number of a span that fits -> whether its text or its tokens say so."""
        caller = self._tree.get(call.trace_id, call.parent_span_id)
        text = digest_of(call.content)
        by_tokens = self._by_tokens.get(_tokens(call), [])
        by_text = self._by_text.get(text, []) if text is not None else []
        if max(len(by_tokens), len(by_text)) > _MAX_ALIKE:
            return {}
        alike = dict.fromkeys(by_tokens, True)
        around = self._around(caller) if caller is not None else []
        alike |= {number: number in alike for number in around}
        alike |= dict.fromkeys(by_text, True)
        if len(alike) > _MAX_ALIKE:
            return {}
        found = {number: told for number, told in alike.items() if self._may_be(number, call, text, caller)}
        run = self._runs.get(call.parent_call_id or "")
        of_run = {number: told for number, told in found.items() if self._run_at(number) == run}
        return of_run if run is not None and of_run else found

    def _run_at(self, number: int) -> SpanKey | None:
        named = self._tree.above(self._spans[number]).named
        return named.place if named is not None else None

    def _around(self, caller: SpanFact) -> list[int]:
        """The spans that the caller's lies within; none where they are too many to look at."""
        found: list[int] = []
        last = bisect_right(self._starts, caller.start_ns)
        for number in range(last - 1, -1, -1):
            if self._ends[number] < caller.end_ns:
                return found
            if last - number > _MAX_ALIKE:
                return []
            if self._spans[number].service == caller.service and self._spans[number].end_ns >= caller.end_ns:
                found.append(number)
        return found

    def _may_be(self, number: int, call: CallRecord, text: str | None, caller: SpanFact | None) -> bool:
        span = self._spans[number]
        is_told = text is not None and span.output_digest == text
        if span.output_digest is not None and not is_told:
            return False
        if span.requested_tool_call_ids and not call.tool_calls:
            return False
        tokens = _tokens_of(span)
        if not is_told and tokens is not None and tokens != _tokens(call):
            return False
        if caller is None or caller.service != span.service:
            return True
        mine, other = self._tree.above(caller).named, self._tree.above(span).named
        if mine is not None and other is not None and mine.name != other.name:
            return False
        return _is_within(caller, span) or _is_within(span, caller)


def _is_within(inner: SpanFact, outer: SpanFact) -> bool:
    return outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns


def _tokens(call: CallRecord) -> tuple[int, int]:
    return call.shared_tokens + len(call.suffix_ids) // TOKEN_BYTES, call.num_sampled


def _tokens_of(span: SpanFact) -> tuple[int, int] | None:
    return (span.input_tokens, span.output_tokens) if span.input_tokens and span.output_tokens else None


def _whole_services(
    calls: Mapping[int, CallRecord], spans: Sequence[SpanFact], edges: Mapping[int, Mapping[int, bool]], tree: SpanTree
) -> set[str]:
    """Those of which every span fits a request and every request that names nobody a span: neither is of another
    model's, nor of a client without spans."""
    used = {number for found in edges.values() for number in found}
    whole = {span.service for span in spans}
    whole -= {span.service for number, span in enumerate(spans) if number not in used}
    for index, call in calls.items():
        caller = tree.get(call.trace_id, call.parent_span_id)
        if index not in edges and (caller is None or tree.above(caller).named is None):
            whole -= {caller.service} if caller is not None else whole
    return whole


def _groups(edges: Mapping[int, Mapping[int, bool]]) -> Iterable[dict[int, set[int]]]:
    """The calls that share spans with each other, each with its spans."""
    by_span: dict[int, list[int]] = defaultdict(list)
    for index, found in edges.items():
        for number in found:
            by_span[number].append(index)
    seen: set[int] = set()
    for first in edges:
        group, open_ = {}, [first]
        while open_:
            index = open_.pop()
            if index not in seen:
                seen.add(index)
                group[index] = set(edges[index])
                # Each span's calls once: many may fit it.
                open_.extend(other for number in edges[index] for other in by_span.pop(number, ()))
        if group:
            yield group


def _pairs(group: dict[int, set[int]], calls: Mapping[int, CallRecord], spans: Sequence[SpanFact]) -> dict[int, int]:
    """The one way to give each call of a group a span of its own; nothing where there are several, or none."""
    numbers = set().union(*group.values())
    if len(numbers) != len(group):
        return {}
    return _forced(group) or _in_order(group, numbers, calls, spans)


def _forced(group: Mapping[int, set[int]]) -> dict[int, int]:
    """The pairs that follow from each other: of who fits one alone, that is no other's."""
    left = {index: set(found) for index, found in group.items()}
    wanted: dict[int, set[int]] = defaultdict(set)
    for index, found in left.items():
        for number in found:
            wanted[number].add(index)
    sure = [(i, n) for i, found in left.items() for n in found if len(found) == 1 or len(wanted[n]) == 1]
    pairs: dict[int, int] = {}
    while sure:
        index, number = sure.pop()
        if index in pairs or number not in left[index]:
            continue
        pairs[index] = number
        for other in wanted.pop(number) - {index}:
            left[other].discard(number)
            sure.extend((other, one) for one in left[other] if len(left[other]) == 1)
        for one in left.pop(index) - {number}:
            wanted[one].discard(index)
            sure.extend((other, one) for other in wanted[one] if len(wanted[one]) == 1)
    return pairs if len(pairs) == len(group) else {}


def _in_order(
    group: Mapping[int, set[int]], numbers: set[int], calls: Mapping[int, CallRecord], spans: Sequence[SpanFact]
) -> dict[int, int]:
    """One after the other, by the agent's clock and by the gateway's, which need not agree."""
    indices = sorted(group, key=lambda index: (calls[index].started_at_ns, index))
    asked = [(calls[index].started_at_ns, calls[index].ended_at_ns) for index in indices]
    told = [(spans[number].start_ns, spans[number].end_ns) for number in sorted(numbers)]
    if len({spans[number].service for number in numbers}) > 1 or not (_are_apart(asked) and _are_apart(told)):
        return {}
    pairs = dict(zip(indices, sorted(numbers), strict=True))
    return pairs if all(number in group[index] for index, number in pairs.items()) else {}


def _are_apart(times: Sequence[tuple[int, int]]) -> bool:
    return all(one[0] < other[0] and one[1] <= other[0] for one, other in pairwise(times))
