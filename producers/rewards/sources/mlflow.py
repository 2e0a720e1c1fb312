"""MLflow's feedback (assessments of traces), by `POST /api/3.0/mlflow/traces/search`. Pure but for `ask`.

    trace_id tr-<32 hex>                    the trace, whose id is OpenTelemetry's
    span_id                                 the answer that the span tells of, else the trace
    metadata `mlflow.trace.session`         the conversation, whose id is the session's
    expectation, issue, valid = false       nothing

In: pages of the experiment's traces with their assessments, the newest first. Out: Found. Invariant: an assessment that
overrides another has that one's id, so that it revises it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

import msgspec

from ..config import SourceConfig
from .found import Ask, Found, Id, Pages, answer_in, each, ms_of

__all__ = ["answer_of", "scores"]

_SEARCH, _GET = "/api/3.0/mlflow/traces/search", "/api/3.0/mlflow/traces/get"
_PAGE = 100
_TRACE_PREFIX = "tr-"
_SESSION = "mlflow.trace.session"


class _Feedback(msgspec.Struct, frozen=True):
    value: float | bool | str | None = None


class _Names(msgspec.Struct, frozen=True):
    assessment_id: str = ""
    overrides: str | None = None


class _Assessment(msgspec.Struct, frozen=True):
    assessment_id: Id
    assessment_name: str
    trace_id: str
    last_update_time: datetime
    feedback: _Feedback | None = None
    rationale: str | None = None
    span_id: str | None = None
    metadata: dict[str, str] = {}
    valid: bool = True


class _Info(msgspec.Struct, frozen=True):
    assessments: list[msgspec.Raw] = []


class _Page(msgspec.Struct, frozen=True):
    traces: list[_Info] = []
    next_page_token: str | None = None


class _Attribute(msgspec.Struct, frozen=True):
    key: str
    value: msgspec.Raw = msgspec.Raw(b"null")


class _Span(msgspec.Struct, frozen=True):
    span_id: str
    attributes: list[_Attribute] = []


class _Trace(msgspec.Struct, frozen=True):
    spans: list[_Span] = []


class _Got(msgspec.Struct, frozen=True):
    trace: _Trace


async def scores(ask: Ask, source: SourceConfig, names: Sequence[str], since: datetime) -> Pages:
    """Those of traces that began since then, page by page. Raises SourceError."""
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": source.project or "0"}}
    body = {
        "locations": [place],
        "filter": f"trace.timestamp_ms > {ms_of(since)}",
        "max_results": _PAGE,
        "order_by": ["timestamp_ms DESC"],
    }
    token: str | None = None
    while True:
        page = await ask(_Page, _SEARCH, body=body | ({"page_token": token} if token else {}))
        yield [
            one
            for info in page.traces
            for one in each(info.assessments, partial(_read, firsts=_overridden(info.assessments)))
        ]
        if not (token := page.next_page_token):
            return


async def answer_of(ask: Ask, source: SourceConfig, found: Found) -> str | None:
    """The answer that its span tells of. Raises SourceError."""
    got = await ask(_Got, _GET, query=[("trace_id", f"{_TRACE_PREFIX}{found.trace_id}")])
    for span in got.trace.spans:
        if _hex(span.span_id) == found.span_id:
            return answer_in({one.key: one.value for one in span.attributes})
    return None


def _hex(span_id: str) -> str:
    """Protobuf's JSON has bytes in base64."""
    try:
        return base64.b64decode(span_id, validate=True).hex()
    except (binascii.Error, ValueError):
        return span_id


def _overridden(raws: Sequence[msgspec.Raw]) -> dict[str, str]:
    """Assessment -> the one that it overrides."""
    found: dict[str, str] = {}
    for raw in raws:
        try:
            one = msgspec.json.decode(raw, type=_Names)
        except ValueError:
            continue  # `each` tells of it
        if one.overrides:
            found[one.assessment_id] = one.overrides
    return found


def _read(raw: msgspec.Raw, *, firsts: Mapping[str, str]) -> Found | None:
    given = msgspec.json.decode(raw, type=_Assessment)
    if given.feedback is None or not given.valid:
        return None
    first, passed = given.assessment_id, set[str]()
    while first in firsts and first not in passed:
        passed.add(first)
        first = firsts[first]
    session = given.metadata.get(_SESSION)
    return Found(
        id=first,
        name=given.assessment_name,
        value=given.feedback.value,
        reason=given.rationale,
        at_ms=ms_of(given.last_update_time),
        trace_id=None if session else given.trace_id.removeprefix(_TRACE_PREFIX),
        conversation_id=session,
        span_id=None if session else given.span_id,
    )
