"""Langfuse's scores, by `GET /api/public/v3/scores` (Langfuse Cloud; self-hosted from 3.179). Pure but for `ask`.

    subject trace              the trace, whose id is OpenTelemetry's
    subject observation        its trace: what its span's attributes are is another API's
    subject session            the conversation, whose id is the session's
    subject experiment         nothing

In: pages of scores, in its order. Out: Found. A score without a subject that we know is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from ..config import SourceConfig
from .found import Ask, Found, Id, Pages, each, ms_of

__all__ = ["scores"]

_PATH = "/api/public/v3/scores"
_PAGE = 100
"""The most that it gives."""


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


def _read(raw: msgspec.Raw) -> Found | None:
    score = msgspec.json.decode(raw, type=_Score)
    about = score.subject
    match about.kind if about else None:
        case "trace":
            trace, session = about.id if about else None, None
        case "observation":
            trace, session = about.trace_id if about else None, None
        case "session":
            trace, session = None, about.id if about else None
        case _:
            return None
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
    )
