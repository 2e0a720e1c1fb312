"""A run's ids counted anew while it runs: once for each time that somebody asks, and no more."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.consumers.audit.small_run import RING, long_run, memory_log
from tests.consumers.page.boards import new_board
from tests.consumers.page.looking import draw, elements_of
from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, TOPICS
from tracegrad.consumers.audit.account import Report, audit
from tracegrad.consumers.audit.recount import MAX_RECORDS, Recount
from tracegrad.consumers.page.asked import Target
from tracegrad.consumers.page.board import Board, TopicCount
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.topics import Topic

_PATIENCE_S = 30.0


class Counting:
    """A count that ends when it may."""

    def __init__(self, report: Report | None) -> None:
        self.may_end, self.has_told = threading.Event(), threading.Event()
        self.num = 0
        self._report = report
        self.recount = Recount(self._count, self.has_told.set)

    def _count(self) -> Report:
        self.num += 1
        assert self.may_end.wait(_PATIENCE_S)
        if self._report is None:
            raise UnavailableError("Kafka is away")
        return self._report


def report_of(folder: Path) -> Report:
    """Of a small run."""
    log = memory_log(long_run(folder))
    return audit(log, TOPICS, RunHash(RUN_HASH), "policy", ring=RING, is_live=True)


def board_with(folder: Path, recount: Recount) -> Board:
    """A live one."""
    board = new_board(folder, MemoryLog())
    board.counts = {Topic.LLM_CALLS: TopicCount(7, None, {})}
    board.recount = recount
    return board


def test_a_link_counts_once_however_often_it_is_looked_at(tmp_path: Path) -> None:
    """While it runs none begins beside it; then the next link counts again."""
    counting = Counting(report_of(tmp_path))
    board = board_with(tmp_path, counting.recount)
    assert 'href="/system?recount=1"' in draw(board, "/system") and counting.num == 0
    for _ in range(3):
        assert "All topics are being read" in draw(board, "/system?recount=1")
    counting.may_end.set()
    assert counting.has_told.wait(_PATIENCE_S)
    for _ in range(2):
        html = draw(board, "/system?recount=1")
    assert counting.num == 1 and 'href="/system?recount=2"' in html
    _, text = elements_of(html)
    assert "episodes" in text and "in groups" in text and "are on their way" in text


def test_a_count_that_finds_nothing_says_why(tmp_path: Path) -> None:
    """And may be asked for again."""
    counting = Counting(None)
    counting.may_end.set()
    board = board_with(tmp_path, counting.recount)
    draw(board, "/system?recount=1")
    assert counting.has_told.wait(_PATIENCE_S)
    html = draw(board, "/system?recount=1")
    assert "Kafka is away" in html and 'href="/system?recount=2"' in html


def test_a_run_too_large_for_a_page_is_left_to_the_command(tmp_path: Path) -> None:
    """Its ids would not fit beside the page."""
    counting = Counting(None)
    board = board_with(tmp_path, counting.recount)
    board.counts = {Topic.LLM_CALLS: TopicCount(MAX_RECORDS + 1, None, {})}
    assert "use the command" in draw(board, "/system?recount=1") and counting.num == 0


def test_nobody_counts_an_ended_run_or_one_that_replays(tmp_path: Path) -> None:
    """The audit of its end stands there, or it has no raw records."""
    board = new_board(tmp_path, MemoryLog())
    assert "recount" not in draw(board, "/system?recount=1")


def test_a_number_that_is_none_begins_no_count(tmp_path: Path) -> None:
    """Whatever the URL says; nor does any, before it is known how much there is to count."""
    counting = Counting(None)
    board = board_with(tmp_path, counting.recount)
    for asked in ("x", "-1", "9" * 99, "0"):
        draw(board, f"/system?recount={asked}")
    known, board.counts = board.counts, {}
    draw(board, "/system?recount=1")
    assert not counting.recount.state.is_running and counting.num == 0
    board.counts = known
    draw(board, "/system?recount=1")
    assert counting.recount.state.is_running
    counting.may_end.set()
    assert counting.has_told.wait(_PATIENCE_S)


def test_an_old_link_counts_once(tmp_path: Path) -> None:
    """Its number lies far beyond those of a page that was started again."""
    counting = Counting(report_of(tmp_path))
    counting.may_end.set()
    board = board_with(tmp_path, counting.recount)
    for _ in range(3):
        counting.has_told.clear()
        draw(board, "/system?recount=999")
        counting.has_told.wait(0.2)
    assert counting.num == 1
    assert 'href="/system?recount=1000"' in draw(board, "/system")


def test_a_count_that_broke_leaves_the_last_one_of_its_own_time(tmp_path: Path) -> None:
    """Whatever was raised, it is said."""
    reports, has_told = [report_of(tmp_path)], threading.Event()
    recount = Recount(lambda: reports.pop(), has_told.set)
    for number in (1, 2):
        has_told.clear()
        recount.ask(number, 7)
        assert has_told.wait(_PATIENCE_S)
        if number == 1:
            before = recount.state
    assert (recount.state.at_ms, recount.state.report) == (before.at_ms, before.report)
    assert "pop from empty list" in recount.state.trouble


def test_system_says_where_prometheus_finds_the_processes(tmp_path: Path) -> None:
    """And the line that follows them through restarts."""
    board = new_board(tmp_path / "small", MemoryLog())
    board.targets, board.scrape = lambda: [Target("llm", "http://127.0.0.1:4/metrics")], "file_sd_configs: []"
    _, text = elements_of(draw(board, "/system"))
    assert "http://127.0.0.1:4/metrics" in text
    assert "file_sd_configs: []" in text
