"""One score as a vendor holds it, whoever the vendor is, and what its reader is given to ask with. Pure.

In: JSON of the vendor's, typed by its reader. Out: Found, or Unread for one whose form the reader does not know, so
that its neighbours are read. Invariant: what is made of an unchanged score is the same each time it is read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from tracegrad.schemas.ids import CALL_ID, key_in

__all__ = ["Ask", "Found", "Id", "Pages", "Query", "Unread", "answer_in", "each", "ms_of"]

T = TypeVar("T")
Query = Sequence[tuple[str, str]]
Id = Annotated[str, msgspec.Meta(min_length=1)]
"""Without one scores would revise each other."""
_RESPONSE_ID = "gen_ai.response.id"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A score."""

    id: str
    """By which the vendor tells it from others, for as long as it is there."""
    name: str
    value: float | str | None
    """A bool is 0 or 1; a text is a label."""
    reason: str | None = None
    at_ms: int
    """When the vendor last changed it."""
    trace_id: str | None = None
    conversation_id: str | None = None
    """The vendor's session. One of both is there."""
    span_id: str | None = None
    """The span of the trace that it is about."""


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A score that its reader cannot read."""

    id: str
    """A hash of its bytes."""
    at_ms: int = 0


Pages = AsyncGenerator[list[Found | Unread], None]


class Ask(Protocol):
    """One request of a source: GET, or POST with a body; relative to its URL. Raises SourceError."""

    async def __call__(
        self, answer: type[T], path: str, *, query: Query = (), body: Mapping[str, Any] | None = None
    ) -> T:
        """The answer, of that type."""
        ...


def each(raws: Iterable[msgspec.Raw], read: Callable[[msgspec.Raw], Found | None]) -> list[Found | Unread]:
    """What the readable ones say; a reader's None is no score. None hurts another."""
    found: list[Found | Unread] = []
    for raw in raws:
        try:
            one = read(raw)
        except (msgspec.DecodeError, ValueError, OverflowError):
            found.append(Unread(id=hashlib.sha256(bytes(raw)).hexdigest()[:32]))
        else:
            found += [one] if one is not None else []
    return found


def ms_of(at: datetime) -> int:
    """A vendor's time; one without a zone is UTC."""
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def answer_in(attributes: Mapping[str, msgspec.Raw]) -> str | None:
    """The id of the one answer that a span tells of: as its response id, else anywhere in it. None: it tells of none
    of our gateways', or of several."""
    own = attributes.get(_RESPONSE_ID)
    for texts in ([own] if own is not None else [], attributes.values()):
        named = {one[0] for text in texts for one in re.finditer(CALL_ID, bytes(text).decode("utf-8", "replace"))}
        if len(ids := {one for one in named if key_in(one) is not None}) == 1:
            return ids.pop()
    return None
