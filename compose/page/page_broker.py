"""The broker of a run that has ended, while its page needs it: to read what no page left, and when a view asks.

In: the run's folder, its board. Out: the board, connected while it must be. Invariant: a page that needs no broker
leaves it to others. Failure: the first reading's is the page's; a later one is said on the page, and tried again when
a view asks again.
"""

from __future__ import annotations

import threading

from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.board_reader import BoardReader
from tracegrad.schemas.errors import TracegradError

from ..history.index import is_current, mark_current
from ..history.run_broker import open_broker
from ..run.run_dir import RunDir
from ..run.wiring import Wiring
from .page_file import write_page_file

_POLL_S = 0.2
_READ_S = 600.0


def keep_broker(run_dir: RunDir, board: Board, stop: threading.Event) -> None:
    """Until `stop` is set. Blocks. Raises ConfigurationError when another reader has it at first, UnavailableError."""
    while not stop.is_set():
        must_read = not board.is_read
        if must_read or board.asks_log or (board.wanted.is_set() and not _knows_all(run_dir, board)):
            try:
                _open(run_dir, board, stop)
                board.set_trouble("")
            except TracegradError as error:
                if must_read:
                    raise
                board.refuse(str(error))
        stop.wait(_POLL_S)


def _knows_all(run_dir: RunDir, board: Board) -> bool:
    if not is_current(run_dir):
        return False
    board.wanted.clear()
    board.is_indexed = True
    return True


def _open(run_dir: RunDir, board: Board, stop: threading.Event) -> None:
    """Connects the board for as long as something asks; what it lacked is left for the next page."""
    with open_broker(run_dir) as servers:
        opened, done = Wiring(run_dir, bootstrap_servers=servers), threading.Event()
        must_read = not board.is_read
        board.connect(opened.log())
        reading = BoardReader(board, done, starts=run_dir.starts, folds=must_read)
        reading.start()
        try:
            if must_read:
                write_page_file(run_dir, board, reading, timeout_s=_READ_S, stop=stop)
            while not stop.wait(_POLL_S) and _is_wanted(board, reading):
                pass
        finally:
            reading.close()
            board.disconnect()
    if reading.num_filled:
        mark_current(run_dir)


def _is_wanted(board: Board, reading: BoardReader) -> bool:
    return board.asks_log or board.wanted.is_set() or reading.is_busy
