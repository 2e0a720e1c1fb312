"""Langfuse's scores, by `GET /api/public/v3/scores` (Langfuse Cloud; self-hosted from 3.179). Pure but for `ask`.

The answer of an observation stands in its metadata, by `GET /api/public/v2/observations`.

    subject trace              the trace, whose id is OpenTelemetry's
    subject observation        the answer that it tells of, else its trace
    subject session            the conversation, whose id is the session's
    subject experiment         nothing

In: pages of scores, in its order. Out: Found. A score without a subject that we know is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from tracegrad.schemas.errors import SourceError

from ..config import SourceConfig
from .found import Ask, Found, Id, Pages, answer_in, each, ms_of

__all__ = ["answer_of", "scores"]

_PATH = "/api/public/v3/scores"
_OBSERVATIONS = "/api/public/v2/observations"
_PAGE = 100
"""The most that it gives."""
_NEVER_TOLD = ("400", "403", "410", "form")
"""Why an observation cannot be asked for, and will not be: a release without the route, a key that may not."""


class _Subject(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    id: str
    trace_id: str | None = None


class _Score(msgspec.Struct, frozen=True, rename="camel"):
    id: Id
    name: str
    value: float | bool | str | None
    updated_at: datetime
    comment: str | None = None
    subject: _Subject | None = None


class _Meta(msgspec.Struct, frozen=True):
    cursor: str | None = None


class _Page(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]
    meta: _Meta


class _Observation(msgspec.Struct, frozen=True):
    metadata: dict[str, msgspec.Raw] | None = None


class _Observations(msgspec.Struct, frozen=True):
    data: list[_Observation]


async def scores(ask: Ask, source: SourceConfig, names: Sequence[str], since: datetime) -> Pages:
    """Those given since then, page by page. Raises SourceError."""
    query = [("limit", str(_PAGE)), ("fields", "details,subject"), ("fromTimestamp", since.isoformat())]
    if not any("," in name for name in names):
        query.append(("name", ",".join(names)))
    cursor: str | None = None
    while True:
        page = await ask(_Page, _PATH, query=[*query, ("cursor", cursor)] if cursor else query)
        yield each(page.data, _read)
        if not (cursor := page.meta.cursor):
            return


async def answer_of(ask: Ask, _source: SourceConfig, found: Found) -> str | None:
    """The answer that its observation tells of. Raises SourceError where it may tell later."""
    places = (("id", found.span_id), ("traceId", found.trace_id))
    wanted = [{"type": "string", "column": column, "operator": "=", "value": value} for column, value in places]
    query = [("fields", "core,metadata"), ("expandMetadata", "attributes"), ("limit", "1")]
    query.append(("filter", msgspec.json.encode(wanted).decode()))
    try:
        observations = await ask(_Observations, _OBSERVATIONS, query=query)
    except SourceError as error:
        if error.reason in _NEVER_TOLD:
            return None
        raise
    return answer_in(observations.data[0].metadata or {}) if observations.data else None


def _read(raw: msgspec.Raw) -> Found | None:
    score = msgspec.json.decode(raw, type=_Score)
    trace = span = session = None
    match score.subject:
        case _Subject(kind="trace", id=id_):
            trace = id_
        case _Subject(kind="observation", id=id_, trace_id=trace_id):
            trace, span = trace_id, id_
        case _Subject(kind="session", id=id_):
            session = id_
    if trace is None and session is None:
        return None
    return Found(
        id=score.id,
        name=score.name,
        value=score.value,
        reason=score.comment,
        at_ms=ms_of(score.updated_at),
        trace_id=trace,
        conversation_id=session,
        span_id=span,
    )
