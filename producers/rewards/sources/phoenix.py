"""Phoenix's annotations of traces, spans and sessions, by its REST API. Pure but for `ask`.

    trace annotation        the trace, whose id is OpenTelemetry's
    span annotation         the answer that the span tells of, else its trace
    session annotation      the conversation, whose id is the session's

It lists annotations by what they are about only, so traces with their spans and sessions are listed first, the newest
first. In: these pages. Out: Found; a result's score, or its label where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from urllib.parse import quote

import msgspec

from ..config import SourceConfig
from .found import Ask, Found, Id, Pages, Query, answer_in, each, ms_of

__all__ = ["answer_of", "scores"]

_PAGE = 100
"""Of traces; so many ids stand in a URL, too."""
_SILENT_PAGES = 10
"""Of sessions, in a row: those that began last are listed first, and one that began long ago may still go on."""
_ANNOTATIONS = "1000"
_DEFAULT = "default"


class _Result(msgspec.Struct, frozen=True):
    score: float | None = None
    label: str | None = None
    explanation: str | None = None


class _Annotation(msgspec.Struct, frozen=True):
    id: Id
    name: str
    updated_at: datetime
    result: _Result | None = None
    trace_id: str | None = None
    span_id: str | None = None
    session_id: str | None = None


class _SpanName(msgspec.Struct, frozen=True):
    span_id: str


class _Trace(msgspec.Struct, frozen=True):
    trace_id: str
    spans: list[_SpanName] | None = None


class _Session(msgspec.Struct, frozen=True):
    session_id: str
    end_time: datetime


class _Span(msgspec.Struct, frozen=True):
    attributes: dict[str, msgspec.Raw] = {}


class _Page(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]
    next_cursor: str | None = None


class _Traces(msgspec.Struct, frozen=True):
    data: list[_Trace]
    next_cursor: str | None = None


class _Sessions(msgspec.Struct, frozen=True):
    data: list[_Session]
    next_cursor: str | None = None


class _Spans(msgspec.Struct, frozen=True):
    data: list[_Span]


async def scores(ask: Ask, source: SourceConfig, names: Sequence[str], since: datetime) -> Pages:
    """Those of traces that began, and sessions that went on, since then; page by page. Raises SourceError."""
    wanted = [("include_annotation_names", name) for name in names]
    about = partial(_annotations, ask, _project(source), wanted)
    query = [("include_spans", "true"), ("limit", str(_PAGE)), ("start_time", since.isoformat())]
    cursor: str | None = None
    while True:
        traces = await ask(_Traces, f"{_project(source)}/traces", query=_at(query, cursor))
        trace_of = {span.span_id: one.trace_id for one in traces.data for span in one.spans or ()}
        for kind, ids in (("trace", [one.trace_id for one in traces.data]), ("span", list(trace_of))):
            async for page in about(kind, ids, partial(_read, traces=trace_of)):
                yield page
        if not (cursor := traces.next_cursor):
            break
    query, cursor, num_silent = [("order", "desc"), ("limit", str(_PAGE))], None, 0
    while True:
        sessions = await ask(_Sessions, f"{_project(source)}/sessions", query=_at(query, cursor))
        live = [one.session_id for one in sessions.data if ms_of(one.end_time) >= ms_of(since)]
        async for page in about("session", live, partial(_read, traces={})):
            yield page
        num_silent = 0 if live else num_silent + 1
        if num_silent == _SILENT_PAGES or not (cursor := sessions.next_cursor):
            return


async def answer_of(ask: Ask, source: SourceConfig, found: Found) -> str | None:
    """The answer that its span tells of. Raises SourceError."""
    query = [("trace_id", found.trace_id or ""), ("span_id", found.span_id or ""), ("limit", "1")]
    spans = await ask(_Spans, f"{_project(source)}/spans", query=query)
    return answer_in(spans.data[0].attributes) if spans.data else None


def _project(source: SourceConfig) -> str:
    return f"/v1/projects/{quote(source.project or _DEFAULT, safe='')}"


def _at(query: Query, cursor: str | None) -> Query:
    return [*query, ("cursor", cursor)] if cursor else query


async def _annotations(
    ask: Ask,
    project: str,
    wanted: Query,
    kind: str,
    ids: Sequence[str],
    read: Callable[[msgspec.Raw], Found | None],
) -> Pages:
    for start in range(0, len(ids), _PAGE):
        query = [(f"{kind}_ids", id_) for id_ in ids[start : start + _PAGE]]
        query += [*wanted, ("limit", _ANNOTATIONS)]
        cursor: str | None = None
        while True:
            page = await ask(_Page, f"{project}/{kind}_annotations", query=_at(query, cursor))
            yield each(page.data, read)
            if not (cursor := page.next_cursor):
                break


def _read(raw: msgspec.Raw, *, traces: Mapping[str, str]) -> Found | None:
    given = msgspec.json.decode(raw, type=_Annotation)
    trace = given.trace_id or traces.get(given.span_id or "")
    if given.result is None or not (trace or given.session_id):
        return None
    return Found(
        id=given.id,
        name=given.name,
        value=given.result.score if given.result.score is not None else given.result.label,
        reason=given.result.explanation,
        at_ms=ms_of(given.updated_at),
        trace_id=trace,
        conversation_id=None if trace else given.session_id,
        span_id=given.span_id,
    )
