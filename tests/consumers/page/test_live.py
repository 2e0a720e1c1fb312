"""Live views: what is sent, how often, and to whom; a client that reads slowly, one that comes back, one too many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.consumers.page.boards import browser, new_board
from tests.memory_log import MemoryLog
from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.live import LiveViews

fast_views = partial(LiveViews, every_s=0.02)
"""A second is short."""


@pytest.fixture
def board(tmp_path: Path, memory_log: MemoryLog) -> Board:
    """Of a run without a record."""
    return new_board(tmp_path, memory_log)


class Drawn:
    """A view whose text the test sets."""

    def __init__(self) -> None:
        self.text, self.num = "one", 0

    def __call__(self, of: str) -> str:
        self.num += 1
        return f"<p>{of} {self.text}</p>\n<p>x</p>"


async def views(events: AsyncIterator[bytes], num: int) -> list[str]:
    """The next events that hold a view."""
    found: list[str] = []
    async for event in events:
        if b"event: view" in event:
            found.append(event.decode())
        if len(found) == num:
            return found
    return found


async def test_a_view_is_sent_whole_and_again_only_when_it_changed(board: Board) -> None:
    """Also a board that changed sends nothing, where the view shows the same."""
    drawn = Drawn()
    events = fast_views(board, drawn, threading.Event()).events("/", "")
    (first,) = await asyncio.wait_for(views(events, 1), 5)
    assert first.splitlines()[1:] == ["event: view", "data: <p>/ one</p>", "data: <p>x</p>", ""]
    board.changed()
    again = asyncio.ensure_future(views(events, 1))
    await asyncio.sleep(0.2)
    assert not again.done() and drawn.num == 2
    drawn.text = "two"
    board.changed()
    assert "two" in (await asyncio.wait_for(again, 5))[0]
    await events.aclose()


async def test_who_comes_back_gets_what_is_new(board: Board) -> None:
    """By the id of its last event, which is of what it saw: a page that was started again knows it too."""
    drawn = Drawn()
    (first,) = await asyncio.wait_for(views(fast_views(board, drawn, threading.Event()).events("/", ""), 1), 5)
    last_id = first.splitlines()[0].removeprefix("id: ")
    back = asyncio.ensure_future(views(fast_views(board, drawn, threading.Event()).events("/", last_id), 1))
    await asyncio.sleep(0.2)
    assert not back.done()
    drawn.text = "two"
    board.changed()
    assert "two" in (await asyncio.wait_for(back, 5))[0]


async def test_a_slow_client_gets_the_newest_view(board: Board) -> None:
    """What changed meanwhile is skipped: nothing is queued for it."""
    drawn = Drawn()
    events = fast_views(board, drawn, threading.Event()).events("/", "")
    await asyncio.wait_for(views(events, 1), 5)
    for number in range(1_000):
        drawn.text = str(number)
        board.changed()
    assert "999" in (await asyncio.wait_for(views(events, 1), 5))[0]
    assert drawn.num == 2


async def test_a_view_is_made_once_for_all_who_look(board: Board) -> None:
    """Fifty clients cost what one does."""
    drawn = Drawn()
    shown = fast_views(board, drawn, threading.Event())
    found = await asyncio.wait_for(asyncio.gather(*(views(shown.events("/", ""), 1) for _ in range(50))), 10)
    assert drawn.num == 1 and len({text for (text,) in found}) == 1


async def test_views_that_are_kept_are_bounded(board: Board) -> None:
    """Whatever a browser asks for, such as a thousand filters."""
    shown = fast_views(board, Drawn(), threading.Event())
    for number in range(1_000):
        await shown.snapshot(f"/data?{number}")
    assert len(shown._known) == len(shown._making) == 32


async def test_a_view_that_cannot_be_drawn_leaves_nothing_behind(board: Board) -> None:
    """Whoever asks for many such views is remembered for none; the next to ask is answered."""
    fails = [True]

    def draw(of: str) -> str:
        if fails:
            raise KeyError(of)
        return "drawn"

    live = fast_views(board, draw, threading.Event())
    for number in range(9):
        with pytest.raises(KeyError):
            await live.snapshot(f"/{number}")
    assert not live._making and not live._known
    fails.clear()
    assert (await live.snapshot("/0")).html == "drawn"


async def test_no_more_clients_than_there_is_room_for(board: Board) -> None:
    """One that leaves makes room for another."""
    shown = fast_views(board, Drawn(), threading.Event(), max_clients=2)
    first, second = shown.events("/", ""), shown.events("/", "")
    await asyncio.wait_for(views(first, 1), 5)
    assert shown.has_room
    await asyncio.wait_for(views(second, 1), 5)
    assert not shown.has_room
    await first.aclose()
    assert shown.has_room


async def test_the_end_of_the_page_ends_its_streams(board: Board) -> None:
    """Within a second, so that its process can go."""
    stop = threading.Event()
    async with browser(board, stop) as client:
        asking = asyncio.ensure_future(client.get("/events?of=/system"))
        await asyncio.sleep(0.2)
        stop.set()
        answer = await asyncio.wait_for(asking, 5)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "event: view" in answer.text and "retry: 2000" in answer.text


async def test_a_view_that_cannot_be_made_is_sent_as_its_error(board: Board) -> None:
    """The stream goes on."""
    stop = threading.Event()
    async with browser(board, stop) as client:
        asking = asyncio.ensure_future(client.get("/events?of=/nothing"))
        await asyncio.sleep(0.2)
        stop.set()
        assert "no such view" in (await asyncio.wait_for(asking, 5)).text


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
