"""What a vendor's server really answered to our reader, as a file; and a source that answers so again.

In: exchanges, as `record.py` saw them. Out: JSON under `fixtures/`, and an `ask` or an ASGI application that gives the
recorded answers to the recorded requests. Invariant: times in a request are whatever they are; all else is as it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from tracegrad.producers.rewards.config import SourceConfig
from tracegrad.producers.rewards.sources.found import Query

__all__ = ["ANSWER", "SESSION", "TRACE", "Exchange", "Recording", "Replay", "load", "save"]

T = TypeVar("T")
FIXTURES = Path(__file__).parent / "fixtures"
TRACE, SESSION = "5e" * 16, "room 7"
ANSWER = "chatcmpl-2s4P836vSCTkv6CTgvcbxW000000007"
"""As a gateway mints one, of the trace."""
_TIME = re.compile(r"\d{13}|\d{4}-\d\d-\d\dT[\d:.]+(\+\d\d:\d\d)?")


class Exchange(msgspec.Struct, frozen=True):
    """A request and its answer."""

    path: str
    query: list[tuple[str, str]]
    body: dict[str, Any] | None
    answer: msgspec.Raw


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Of one server."""

    made_by: str
    """The package and its version."""
    source: SourceConfig
    rounds: list[list[Exchange]]
    """Readings; before each, people rated."""


def save(name: str, recording: Recording) -> None:
    """Writes it."""
    text = msgspec.json.format(msgspec.json.encode(recording), indent=1)
    (FIXTURES / f"{name}.json").write_bytes(text + b"\n")


def load(name: str) -> Recording:
    """Reads it."""
    return msgspec.json.decode((FIXTURES / f"{name}.json").read_bytes(), type=Recording)


class Replay:
    """Answers as one of the readings was answered: to our reader itself, or over HTTP."""

    def __init__(self, recording: Recording) -> None:
        self._rounds = [{_named(one.path, one.query, one.body): one for one in many} for many in recording.rounds]
        self.round = 0
        self.app = Starlette(routes=[Mount("/", self)])

    async def ask(self, answer: type[T], path: str, *, query: Query = (), body: Mapping[str, Any] | None = None) -> T:
        """Without HTTP. Raises KeyError: nobody asked that."""
        asked = _named(path, query, dict(body) if body is not None else None)
        return msgspec.json.decode(self._rounds[self.round][asked].answer, type=answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        request = Request(scope, receive)
        body = await request.body()
        path = scope["raw_path"].decode()
        asked = _named(path, list(request.query_params.multi_items()), msgspec.json.decode(body) if body else None)
        given = self._rounds[self.round].get(asked)
        answer = Response(bytes(given.answer) if given else b"nobody asked that", 200 if given else 418)
        await answer(scope, receive, send)


def _named(path: str, query: Query, body: Mapping[str, Any] | None) -> str:
    return _TIME.sub("TIME", msgspec.json.encode([path, sorted(query), body], order="sorted").decode())
