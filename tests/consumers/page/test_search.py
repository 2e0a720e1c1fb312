"""Groups searched by what was said in them."""

from __future__ import annotations

import re
import sqlite3
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.consumers.index.indexing import damage
from tests.consumers.page.boards import new_board
from tests.consumers.page.looking import draw, elements_of, long_board
from tests.memory_log import MemoryLog
from tests.serving import until
from tests.streams.make import TOPICS
from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.board_reader import BoardReader, read_said
from tracegrad.consumers.page.episodes import group_list
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.topics import Topic


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Of a small run, which nobody searched yet."""
    return long_board(tmp_path)


def read_all(board: Board) -> None:
    """As the page's thread does."""
    board.said_wanted.clear()
    read_said(board)


def num_groups(html: str) -> int:
    """Rows of the list."""
    return html.count('href="/group/')


def test_the_first_search_has_the_words_read_and_says_so(board: Board) -> None:
    """What is known without them is found at once; nothing is read while nobody searches."""
    draw(board, "/groups")
    assert not board.said_wanted.is_set() and not board.said_path.exists()
    assert "read for the first search" in draw(board, "/groups?q=w5") and board.said_wanted.is_set()
    read_all(board)
    html = draw(board, "/groups?q=w5")
    assert num_groups(html) > 2 and "read for the first search" not in html


def test_a_run_without_an_episode_is_read_to_its_end(tmp_path: Path) -> None:
    """Of nothing; the page asks no more."""
    board = new_board(tmp_path, MemoryLog())
    assert "read for the first search" in draw(board, "/groups?q=w5")
    read_all(board)
    assert "read for the first search" not in draw(board, "/groups?q=w5")


def test_a_file_that_is_damaged_is_read_again(board: Board) -> None:
    """Who searches is told once, and then that it is read, though all was read before."""
    read_all(board)
    damage(board.said_path, "docs")
    with pytest.raises(UnavailableError, match=r"said\.sqlite was damaged"):
        draw(board, "/groups?q=w5")
    assert "read for the first search" in draw(board, "/groups?q=w5") and board.said_wanted.is_set()
    read_all(board)
    assert num_groups(draw(board, "/groups?q=w5")) > 2


@pytest.mark.parametrize("which", ["said", "index"])
def test_a_thread_outlives_a_damaged_file(board: Board, which: str) -> None:
    """It says so, and reads when it is asked again."""
    read_all(board)
    path, wanted = {"said": (board.said_path, board.said_wanted), "index": (board.index_path, board.wanted)}[which]
    damage(path, "positions")
    reading = BoardReader(board, threading.Event(), starts={}, folds=False)
    wanted.set()
    reading.start()
    try:
        until(lambda: f"{path.name} was damaged" in board.trouble)
        until(lambda: not path.exists() and not wanted.is_set())
        wanted.set()
        until(lambda: path.exists() and not wanted.is_set())
    finally:
        reading.close()
    read_all(board)
    assert num_groups(draw(board, "/groups?q=w5")) > 2


def test_a_thread_outlives_what_sqlite_refuses(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk that is full."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("tracegrad.consumers.page.board_reader.catch_up_said", refuse)
    reading = BoardReader(board, threading.Event(), starts={}, folds=False)
    board.said_wanted.set()
    reading.start()
    try:
        until(lambda: "disk is full" in board.trouble)
        monkeypatch.undo()
        board.said_wanted.set()
        until(lambda: num_groups(draw(board, "/groups?q=w5")) > 2)
    finally:
        reading.close()


def test_a_search_and_terms_hold_together(board: Board) -> None:
    """Fewer groups fit both; words that nobody said are in none."""
    read_all(board)
    said, held_out = (num_groups(draw(board, f"/groups?q=w5{more}")) for more in ("", "&where=purpose%3Dvalidation"))
    assert said > held_out > 0
    assert num_groups(draw(board, "/groups?q=neversaid")) == 0


def test_terms_choose_among_all_in_which_it_was_said(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not among the newest alone, which is what is shown without; that it was said more often is told."""
    read_all(board)
    both = num_groups(draw(board, "/groups?q=w5&where=purpose%3Dtrain"))
    monkeypatch.setattr(group_list, "_MAX_SAID", 1)
    assert num_groups(draw(board, "/groups?q=w5&where=purpose%3Dtrain")) == both > 1
    html = draw(board, "/groups?q=w5")
    assert num_groups(html) == 1 and "groups of the newest 1 episodes" in html


def test_an_id_is_found_by_what_the_list_shows_of_it(board: Board) -> None:
    """Which is its end, for all of a run begin alike; in small or large letters, as a reason is."""
    shown = re.findall(r"<code>([0-9a-f]{8})</code>", draw(board, "/groups"))
    assert len(set(shown)) > 3
    for one in shown:
        for text in (one, one.upper()):
            html = draw(board, f"/groups?q={text}")
            assert num_groups(html) == shown.count(one) and f"<code>{one}</code>" in html
    assert num_groups(draw(board, "/groups?q=SUPERSEDED")) == num_groups(draw(board, "/groups?q=superseded"))


def test_of_an_ended_run_nothing_is_read_twice(board: Board) -> None:
    """Its topic has an end, which a page has kept: no broker is asked."""
    board.ends = {Topic.EPISODES: board.needed_log().offsets(TOPICS.name(Topic.EPISODES))}
    read_all(board)
    board.disconnect()
    board.refuse("")
    assert num_groups(draw(board, "/groups?q=w5")) > 2
    assert not board.said_wanted.is_set() and not board.asks_log


def test_prompts_of_an_ended_run_are_read_once_there_is_a_tokenizer(board: Board) -> None:
    """Though all was read, without it."""
    assert board.log is not None and board.pieces is not None
    board.ends = {Topic.EPISODES: board.log.offsets(TOPICS.name(Topic.EPISODES))}
    pieces, board.pieces = board.pieces, None
    read_all(board)
    assert num_groups(draw(board, "/groups?q=w5")) == 0 and not board.said_wanted.is_set()
    board.pieces = pieces
    draw(board, "/groups?q=w5")
    assert board.said_wanted.is_set()
    read_all(board)
    assert num_groups(draw(board, "/groups?q=w5")) > 2


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "\"' onfocus=alert(1)", "{{ 7*7 }}", "%00", "a" * 5_000])
def test_what_is_searched_is_shown_as_text(board: Board, text: str) -> None:
    """In the field, and in the links to further pages."""
    read_all(board)
    elements, _ = elements_of(draw(board, f"/groups?q={quote(text)}"))
    plain, _ = elements_of(draw(board, "/groups?q=nothing"))
    assert elements == plain
