"""The page of a run, served until it is told to stop.

In: a run's folder, whose broker answers or is opened here. Out: HTTP at loopback. Invariant: it reads; the run's index
and `page.msgpack`, which are made of its topics, are all that it writes. Failure: ConfigurationError where another
reader holds the broker of a run that has ended and no page left what it needs.
"""

from __future__ import annotations

import logging
import threading

from tracegrad.consumers.page.app import make_app
from tracegrad.consumers.page.board import Board, RunInfo
from tracegrad.consumers.page.board_reader import BoardReader
from tracegrad.producers.asgi import serve
from tracegrad.schemas.errors import TracegradError

from ..loopback import LOOPBACK
from ..run.report import causes_lines, read_results
from ..run.view_state import run_state
from ..run.wiring import Wiring
from .page_broker import keep_broker
from .page_file import read_page_file, restore_board, write_page_file
from .texts import explain_by, pieces_of

logger = logging.getLogger(__name__)
_LEAVE_S = 3.0
"""The supervisor kills what has not stopped in ten."""
_GRACE_S = 1


def board_of(wiring: Wiring, *, is_live: bool) -> Board:
    """What the views look at, empty; of a run that has ended without its log, whose broker is not there yet."""
    settings, replayed = wiring.settings, wiring.run_dir.replayed
    results = None if is_live else read_results(wiring.run_dir)
    about = RunInfo(
        name=wiring.record.name,
        hash=wiring.record.hash,
        folder=str(wiring.run_dir.path),
        is_live=is_live,
        policy=settings.policy.name,
        steps=settings.trainer.steps,
        groups_per_step=settings.trainer.groups_per_step,
        concurrency=settings.agent.concurrency if settings.agent else None,
        replays=replayed.source if replayed is not None else None,
        causes=causes_lines(results) if results is not None and not results.version else (),
    )
    return Board(
        about,
        wiring.topics,
        run_state(wiring),
        log=wiring.log() if is_live else None,
        pieces=pieces_of(wiring),
        explain=explain_by(wiring),
    )


def serve_live(wiring: Wiring, *, port: int, fd: int | None = None, stop: threading.Event) -> None:
    """Serves a run whose broker others keep until `stop` is set, and leaves what it has read for the next page. Blocks.
    Raises UnavailableError when the address is taken."""
    board, done = board_of(wiring, is_live=True), threading.Event()
    reading = BoardReader(board, done, starts=wiring.run_dir.starts)
    reading.start()
    try:
        _serve(board, wiring, port=port, fd=fd, stop=stop)
    finally:
        try:
            if wiring.settings.kafka.bootstrap_servers is None:
                write_page_file(wiring.run_dir, board, reading, timeout_s=_LEAVE_S)
        except TracegradError as error:
            logger.warning("page: the next page reads the topics again: %s", error)
        reading.close()


def serve_ended(wiring: Wiring, *, port: int, stop: threading.Event) -> None:
    """Serves a run that has ended until `stop` is set: at once, of what an earlier page left; else while its broker is
    started. Blocks.

    Raises ConfigurationError when another reader has its broker and no page left anything, UnavailableError when it
    does not start.
    """
    board, failed = board_of(wiring, is_live=False), list[TracegradError]()
    if (file := read_page_file(wiring.run_dir)) is not None:
        restore_board(board, file)

    def read() -> None:
        try:
            keep_broker(wiring.run_dir, board, stop)
        except TracegradError as error:
            failed.append(error)
            stop.set()

    # A broker dies with the thread that started it.
    keeper = threading.Thread(target=read, name="page-broker")
    keeper.start()
    try:
        _serve(board, wiring, port=port, fd=None, stop=stop)
    finally:
        stop.set()
        keeper.join()
    if failed:
        raise failed[0]


def _serve(board: Board, wiring: Wiring, *, port: int, fd: int | None, stop: threading.Event) -> None:
    app = make_app(board, token=wiring.page_token, port=port)
    serve(app, host=LOOPBACK, port=port, fd=fd, stop=stop, name="page", grace_s=_GRACE_S)
