"""The page's application: its routes, behind the guard.

    /, /system, /data/TOPIC, ...     a view, whole; its part alone for htmx
    /events?of=PATH                  the view at PATH, live
    /json?of=PATH                    its numbers, for charts
    /static/...                      vendored scripts and our own

In: a board, a token, the port. Out: an ASGI application. Invariants: GET alone; nothing without the token (guard.py).
Failure: a view's error is a page that says it, with its status.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from tracegrad.schemas.errors import RequestError, TracegradError, UnavailableError

from . import data, run, system
from .board import Ask, Board
from .episodes import episode, group, groups, learned
from .guard import Guard
from .live import Live
from .render import STATIC, render
from .view import View

__all__ = ["VIEWS", "make_app"]

VIEWS: tuple[View, ...] = (run.VIEW, learned.VIEW, groups.VIEW, system.VIEW, data.VIEW, group.VIEW, episode.VIEW)
"""In the order of the page's head."""
_BY_NAME = {view.name: view for view in VIEWS}


def make_app(board: Board, *, token: str, port: int, stop: threading.Event) -> ASGIApp:
    """The application; `stop` ends the live views."""
    page = _Page(board, stop)
    routes = [
        Route("/events", page.events),
        Route("/json", page.numbers),
        Mount("/static", _Static(directory=STATIC)),
        Route("/{path:path}", page.view),
    ]
    app = GZipMiddleware(Starlette(routes=routes), minimum_size=1_000, compresslevel=6)
    return Guard(app, token=token, port=port)


class _Static(StaticFiles):
    """Files whose URLs change with their bytes."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """May be kept."""
        answer = super().file_response(*args, **kwargs)
        answer.headers["cache-control"] = "private, max-age=31536000, immutable"
        return answer


class _Drawn(NamedTuple):
    html: str
    status: int = 200


class _Page:
    """The routes."""

    def __init__(self, board: Board, stop: threading.Event) -> None:
        self._board = board
        self._live = Live(board, lambda of: self._draw(of).html, stop)

    async def view(self, request: Request) -> Response:
        """A view: whole, or for htmx the part of it that changes."""
        self._board.look()
        of = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        view, _ = _asked(of)
        drawn = await asyncio.to_thread(self._draw, of)
        if "hx-request" in request.headers:
            return HTMLResponse(drawn.html, drawn.status)
        model = {"board": self._board, "views": VIEWS, "view": view, "part": drawn.html}
        return HTMLResponse(render("page.html", model), drawn.status)

    async def events(self, request: Request) -> Response:
        """Server-sent events of a view."""
        if not self._live.has_room:
            words = "too many pages look at this run; close one\n"
            return PlainTextResponse(words, 503, headers={"retry-after": "5"})
        # A tab that was hidden opens a new stream, for which a browser sends no id of its own.
        asked = request.query_params
        last_id = request.headers.get("last-event-id") or asked.get("after", "")
        events = self._live.events(asked.get("of", "/"), last_id)
        return StreamingResponse(events, media_type="text/event-stream")

    async def numbers(self, request: Request) -> Response:
        """A view's numbers."""
        self._board.look()
        view, ask = _asked(request.query_params.get("of", "/"))
        if view is None or view.data is None:
            return PlainTextResponse("this view has no numbers\n", 404)
        try:
            found = await asyncio.to_thread(view.data, self._board, ask)
        except TracegradError as error:
            return PlainTextResponse(f"{error}\n", _status(error))
        return Response(msgspec.json.encode(found), media_type="application/json")

    def _draw(self, of: str) -> _Drawn:
        """A view's part of the page."""
        view, ask = _asked(of)
        try:
            if view is None:
                raise RequestError("no such view; the links above lead to those that there are", status=404)
            model: dict[str, Any] = {"board": self._board, "of": of, **view.model(self._board, ask)}
            return _Drawn(render(view.template, model))
        except TracegradError as error:
            return _Drawn(render("error.html", {"error": str(error)}), _status(error))


def _asked(of: str) -> tuple[View | None, Ask]:
    """By path and query."""
    url = urlsplit(of)
    name, _, rest = unquote(url.path).lstrip("/").partition("/")
    return _BY_NAME.get(name), Ask(rest, dict(parse_qsl(url.query)))


def _status(error: TracegradError) -> int:
    if isinstance(error, RequestError):
        return error.status
    return 503 if isinstance(error, UnavailableError) else 404
