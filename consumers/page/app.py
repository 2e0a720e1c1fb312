"""The page's application: its routes, behind the guard.

    /, /system, /episode/ID, ...   a view, whole; its part alone for htmx
    /json?of=PATH                    its numbers, for charts
    /static/...                      vendored scripts and our own

In: a board, a token, the port. Out: an ASGI application. Invariants: GET alone; nothing without the token
(guard.py). Failure: a view's error is a page that says it, with its status.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from tracegrad.schemas.errors import RequestError, TracegradError, UnavailableError

from . import run, system
from .board import Board, ViewQuery
from .episodes import episode, group, group_list, learned
from .guard import Guard
from .render import STATIC, render
from .view import View

VIEWS: tuple[View, ...] = (run.VIEW, learned.VIEW, group_list.VIEW, system.VIEW, group.VIEW, episode.VIEW)
"""In the order of the page's head."""
_BY_NAME = {view.name: view for view in VIEWS}
GONE = {
    r"/data": "tracegrad tail TOPIC shows the records of a topic, decoded",
    r"/task/": 'the file of [tasks] file has a runner\'s task; a line of it is {"id": .., "input": ..}',
    r"/\?(.*&)?with=": "each run has a page of its own: tracegrad page NAME",
    r"/system\?(.*&)?recount=": "tracegrad audit NAME counts every call, episode and group, of a live run too",
}
"""Forms of addresses of earlier releases -> what takes their place."""


def make_app(board: Board, *, token: str, port: int) -> ASGIApp:
    """The application."""
    page = _Page(board)
    routes = [
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


class _ViewHtml(NamedTuple):
    html: str
    status: int = 200


class _Page:
    """The routes."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._born = secrets.token_hex(8)
        """Another one of a page that was started again, whose revisions begin anew."""

    async def view(self, request: Request) -> Response:
        """A view: whole, or for htmx the part of it that changes; of a live one only where the board changed."""
        self._board.note_look()
        of = _address(request)
        view, _ = _view_asked_for(of)
        headers = {"etag": f'"{self._born}-{self._board.revision}"'}
        is_part = "hx-request" in request.headers
        if is_part and view is not None and view.is_live and request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        drawn = await asyncio.to_thread(self._draw, of)
        if is_part:
            return HTMLResponse(drawn.html, drawn.status, headers)
        model = {"board": self._board, "views": VIEWS, "view": view, "part": drawn.html}
        return HTMLResponse(render("page.html", model), drawn.status)

    async def numbers(self, request: Request) -> Response:
        """A view's numbers."""
        self._board.note_look()
        view, ask = _view_asked_for(request.query_params.get("of", "/"))
        if view is None or view.data is None:
            return PlainTextResponse("this view has no numbers\n", 404)
        try:
            found = await asyncio.to_thread(view.data, self._board, ask)
        except TracegradError as error:
            return PlainTextResponse(f"{error}\n", _status(error))
        return Response(msgspec.json.encode(found), media_type="application/json")

    def _draw(self, of: str) -> _ViewHtml:
        """A view's part of the page."""
        view, ask = _view_asked_for(of)
        try:
            if gone := next((words for form, words in GONE.items() if re.match(form, of)), None):
                raise RequestError(f"it is gone: {gone}", status=410)
            if view is None:
                raise RequestError("no such view; the links above lead to those that there are", status=404)
            return _ViewHtml(self._part(view.template, {"of": of, **view.model(self._board, ask)}))
        except TracegradError as error:
            status = _status(error)
            # What is not there yet is asked for again by the page itself.
            told = {"error": str(error), "of": of if status == 503 else ""}
            return _ViewHtml(self._part("error.html", told), status)

    def _part(self, template: str, model: dict[str, Any]) -> str:
        """Under why nothing new comes, which any view may wait for."""
        return render("part.html", {"template": template, "board": self._board, **model})


def _view_asked_for(of: str) -> tuple[View | None, ViewQuery]:
    """By path and query."""
    path, _, query = of.partition("?")
    name, _, rest = unquote(path).removeprefix("/").partition("/")
    return _BY_NAME.get(name) if name or not rest else None, ViewQuery(rest, dict(parse_qsl(query)))


def _address(request: Request) -> str:
    """Path and query as they were asked for; what a browser's address may be is not for us to parse."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _status(error: TracegradError) -> int:
    if isinstance(error, RequestError):
        return error.status
    return 503 if isinstance(error, UnavailableError) else 404
