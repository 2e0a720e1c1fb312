"""Groups searched by tasks, agents, tools, reasons and ids; and a page's index, filled when it is asked for."""

from __future__ import annotations

import re
import sqlite3
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.consumers.index.indexing import damage
from tests.consumers.page.looking import draw, elements_of, long_board
from tests.serving import until
from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.board_reader import BoardReader


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Of a small run."""
    return long_board(tmp_path)


def num_groups(html: str) -> int:
    """Rows of the list."""
    return html.count('href="/group/')


def test_a_thread_outlives_a_damaged_file(board: Board) -> None:
    """It says so, and reads when it is asked again."""
    damage(board.index_path, "positions")
    reading = BoardReader(board, threading.Event(), starts={}, folds=False)
    board.wanted.set()
    reading.start()
    try:
        until(lambda: "index.sqlite was damaged" in board.trouble)
        until(lambda: not board.index_path.exists() and not board.wanted.is_set())
        board.wanted.set()
        until(lambda: board.index_path.exists() and not board.wanted.is_set())
        until(lambda: num_groups(draw(board, "/groups")) > 2)
    finally:
        reading.close()


def test_a_thread_outlives_what_sqlite_refuses(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk that is full."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("tracegrad.consumers.page.board_reader.catch_up", refuse)
    reading = BoardReader(board, threading.Event(), starts={}, folds=False)
    board.wanted.set()
    reading.start()
    try:
        until(lambda: "disk is full" in board.trouble)
        monkeypatch.undo()
        board.wanted.set()
        until(lambda: reading.num_filled > 0)
    finally:
        reading.close()


def test_a_search_and_terms_hold_together(board: Board) -> None:
    """Fewer groups fit both; what no task, agent, tool or id has is in none."""
    found, held_out = (num_groups(draw(board, f"/groups?q=calc{more}")) for more in ("", "&where=purpose%3Dvalidation"))
    assert found > held_out > 0
    assert num_groups(draw(board, "/groups?q=neversaid")) == 0


def test_an_id_is_found_by_what_the_list_shows_of_it(board: Board) -> None:
    """Which is its end, for all of a run begin alike; in small or large letters, as a reason is."""
    shown = re.findall(r"<code>([0-9a-f]{8})</code>", draw(board, "/groups"))
    assert len(set(shown)) > 3
    for one in shown:
        for text in (one, one.upper()):
            html = draw(board, f"/groups?q={text}")
            assert num_groups(html) == shown.count(one) and f"<code>{one}</code>" in html
    assert num_groups(draw(board, "/groups?q=SUPERSEDED")) == num_groups(draw(board, "/groups?q=superseded"))


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "\"' onfocus=alert(1)", "{{ 7*7 }}", "%00", "a" * 5_000])
def test_what_is_searched_is_shown_as_text(board: Board, text: str) -> None:
    """In the field, and in the links to further pages."""
    elements, _ = elements_of(draw(board, f"/groups?q={quote(text)}"))
    plain, _ = elements_of(draw(board, "/groups?q=nothing"))
    assert elements == plain
