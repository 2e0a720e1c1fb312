"""A board over a run in memory, and its views as a browser would get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.consumers.audit.small_run import long_run, memory_log
from tests.consumers.index.indexing import index_of
from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, TOPICS
from tracegrad.consumers.page.app import VIEWS
from tracegrad.consumers.page.board import Board, Explain, RunInfo, ViewQuery
from tracegrad.consumers.page.episodes.records import facts_of, read_episodes
from tracegrad.consumers.page.render import render
from tracegrad.consumers.views.run_state import RunState
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.episodes import Episode

Elements = list[tuple[str, tuple[str, ...]]]
"""(tag, names of its attributes), in order."""


def words(ids: Sequence[int]) -> list[str]:
    """A tokenizer of few words."""
    return [f"w{id_} " for id_ in ids]


def board_over(
    log: MemoryLog,
    path: Path,
    *,
    pieces: Callable[[Sequence[int]], list[str]] | None = words,
    explain: Explain | None = None,
) -> Board:
    """Its index is up to date."""
    index_of(log, path).close()
    about = RunInfo(name="test", hash=RUN_HASH, folder=str(path), is_live=False, policy="policy")
    state = RunState(TOPICS, RunHash(RUN_HASH), "policy")
    return Board(about, TOPICS, state, log=log, pieces=pieces, explain=explain)


def long_board(folder: Path, **of: Any) -> Board:
    """Over a run with a retry, a rollback, a deadline, a second epoch."""
    (folder / "weights").mkdir()
    return board_over(memory_log(long_run(folder / "weights")), folder, **of)


def draw(board: Board, of: str) -> str:
    """A view's part, by path and query. Raises what the view raises."""
    url = urlsplit(of)
    name, _, rest = unquote(url.path).lstrip("/").partition("/")
    view = next(view for view in VIEWS if view.name == name)
    model = view.model(board, ViewQuery(rest, dict(parse_qsl(url.query))))
    return render(view.template, {"board": board, "of": of, **model})


class Markup(HTMLParser):
    """What the browser would make of a page: each element with the names of its attributes, its links, its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: Elements = []
        self.links: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))
        self.links |= {value or "" for name, value in attrs if name in ("href", "src", "action", "data-json")}

    def handle_data(self, data: str) -> None:
        self.text += data


def elements_of(html: str) -> tuple[Elements, str]:
    """(its elements, its text)."""
    parsed = Markup(html)
    return parsed.found, parsed.text


def episode_of(board: Board) -> Episode:
    """The first one."""
    with board.index() as connection:
        (id_,) = connection.execute("SELECT id FROM episodes ORDER BY n LIMIT 1").fetchone()
        facts = facts_of(connection, id_)
    return read_episodes(board.needed_log(), board.topics, [facts])[id_].episode
