"""Several dialects on one span become one meaning: each field from whichever has it, by a rule of its own.

In: the readings of a span, by dialect, in any order. Out: SpanMeaning. Invariant: the order of the readings does not
matter, and two that disagree on a field leave it unknown, except where one is sure:

    kind             one that `overrules`; else the most specific: tool, LLM, agent, other
    response id,     the one that is said; of several the one that a gateway minted
    tool-call id
    names            the one that an attribute says, else the one by the span's name; of several none
    answer's digest  the one that is said; of several none
    requested ids    all
    tool's outcome   judged once, of all results and statuses
    tool's result    the shortest form of all
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tracegrad.schemas.ids import canonical_call, key_in
from tracegrad.schemas.records.facts import MAX_TOOL_CALLS, SpanKind, ToolStatus

from ..reading.agent_hints import is_wrapper
from ..reading.judge_tool import ToolJudge
from ..reading.returned import result_of
from ..reading.span_view import SpanView
from .dialect import SpanReading

_SPECIFIC = (SpanKind.TOOL, SpanKind.LLM, SpanKind.AGENT, SpanKind.OTHER)


class SpanMeaning(NamedTuple):
    """What a span stands for; fields as in SpanFact."""

    kind: SpanKind
    agent_name: str | None
    response_id: str | None
    tool_name: str | None
    tool_call_id: str | None
    tool_status: ToolStatus
    tool_status_from: str
    output_digest: str | None
    requested_tool_call_ids: tuple[str, ...]
    tool_result: str | None
    is_result_cut: bool


def merge(span: SpanView, readings: Mapping[str, SpanReading], judge: ToolJudge) -> tuple[str, SpanMeaning]:
    """(names of the dialects, joined by `+`; the meaning) of a span that speaks at least one."""
    (names, reading), *others = readings.items()
    if others:
        names, reading = "+".join(sorted(readings)), _merged(list(readings.values()))
    status, status_from = ToolStatus.UNKNOWN, ""
    result, is_cut = result_of(reading.results) if reading.kind is SpanKind.TOOL else (None, False)
    if reading.kind is SpanKind.TOOL or reading.serves_tool:
        status, status_from = judge(span, reading.tool_name or span.name, reading.results, reading.declared)
    response_id = reading.response_id
    named, (digest, asked) = reading.agent_name, reading.output
    meaning = SpanMeaning(
        reading.kind,
        # A default of an instrumentation's says nothing of who is at work.
        None if named is None or is_wrapper(named) else named,
        response_id and (canonical_call(response_id) or response_id),
        reading.tool_name,
        reading.tool_call_id,
        status,
        status_from,
        None if span.is_cut else digest,
        asked,
        result,
        is_cut,
    )
    return names, meaning


def _merged(readings: list[SpanReading]) -> SpanReading:
    kinds = {reading.kind for reading in readings if reading.overrules} or {reading.kind for reading in readings}
    kind = next(kind for kind in _SPECIFIC if kind in kinds)
    agreed = [reading for reading in readings if reading.kind is kind]
    named = [reading for reading in agreed if not reading.is_guess] or agreed
    response_ids = {canonical_call(id_) or id_ for reading in agreed if (id_ := reading.response_id)}
    asked = sorted({id_ for reading in agreed for id_ in reading.output[1]})
    return SpanReading(
        kind=kind,
        agent_name=_one(reading.agent_name for reading in named),
        response_id=_one(response_ids, lambda id_: canonical_call(id_) is not None),
        tool_name=_one(reading.tool_name for reading in named),
        tool_call_id=_one((reading.tool_call_id for reading in agreed), lambda id_: key_in(id_) is not None),
        serves_tool=any(reading.serves_tool for reading in agreed),
        results=tuple(result for reading in agreed for result in reading.results),
        declared=tuple(said for reading in agreed for said in reading.declared),
        output=(_one(reading.output[0] for reading in agreed), tuple(asked[:MAX_TOOL_CALLS])),
    )


def _one(values: Iterable[str | None], is_sure: Callable[[str], bool] | None = None) -> str | None:
    """The one value that is said; of several the one that is sure; else none."""
    said = {value for value in values if value}
    if len(said) > 1 and is_sure is not None:
        said = {value for value in said if is_sure(value)}
    return said.pop() if len(said) == 1 else None
