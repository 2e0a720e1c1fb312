"""What a browser that asks for a view again and again is sent, and that nothing is done for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumers.page.boards import browser, new_board
from tests.memory_log import MemoryLog
from tracegrad.consumers.page.board import Board

PART = {"hx-request": "true"}


@pytest.fixture
def board(tmp_path: Path, memory_log: MemoryLog) -> Board:
    """Of a run without a record."""
    return new_board(tmp_path, memory_log)


@pytest.mark.parametrize("of", ["/", "/system", "/learned"])
async def test_a_view_is_sent_again_only_when_the_board_changed(board: Board, of: str) -> None:
    """By the tag of what the browser has."""
    async with browser(board) as client:
        first = await client.get(of, headers=PART)
        tag = {"if-none-match": first.headers["etag"]}
        assert first.status_code == 200 and first.text
        same = await client.get(of, headers=PART | tag)
        assert (same.status_code, same.content) == (304, b"")
        assert (await client.get(of, headers=tag)).status_code == 200, "a whole page is never half sent"
        board.changed()
        again = await client.get(of, headers=PART | tag)
        assert again.status_code == 200 and again.headers["etag"] != first.headers["etag"]


async def test_a_page_that_was_started_again_sends_its_view(board: Board) -> None:
    """Though its revisions begin where the other's stood."""
    async with browser(board) as client, browser(board) as after:
        first = await client.get("/", headers=PART)
        answer = await after.get("/", headers=PART | {"if-none-match": first.headers["etag"]})
    assert answer.status_code == 200


async def test_a_view_that_cannot_be_made_is_sent_as_its_error(board: Board) -> None:
    """As HTML, which takes its place, whatever tag the browser has."""
    async with browser(board) as client:
        tag = (await client.get("/", headers=PART)).headers["etag"]
        answer = await client.get("/nothing", headers=PART | {"if-none-match": tag})
    assert answer.status_code == 404 and "no such view" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("of", "instead"),
    [
        ("/data/episodes", "tracegrad tail TOPIC"),
        ("/task/0123", "file of [tasks] file"),
        ("/?with=other", "tracegrad page NAME"),
        ("/system?a=1&recount=1", "tracegrad audit NAME"),
    ],
)
async def test_an_address_that_is_gone_names_what_takes_its_place(board: Board, of: str, instead: str) -> None:
    """410; a link to it may stand in somebody's notes."""
    async with browser(board) as client:
        answer = await client.get(of)
    assert answer.status_code == 410 and "it is gone: " in answer.text and instead in answer.text


def test_a_run_is_watched_while_somebody_looks(tmp_path: Path, memory_log: MemoryLog) -> None:
    """And for ten seconds after, so that what costs is not done for nobody."""
    now = 100.0
    board = new_board(tmp_path, memory_log)
    board._clock = lambda: now
    assert not board.is_watched
    board.note_look()
    assert board.is_watched
    now += 11
    assert not board.is_watched
