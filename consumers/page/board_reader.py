"""The page's threads: one folds the cheap topics, one measures while somebody looks, one fills the index when asked.

In: the board and its log. Out: the board, up to date. Invariants: they only read; no more is read than views show, so
that a page that nobody looks at costs next to nothing; the index is filled in its own short transactions. Failure: a
broker that is away is waited for, and the board says so; a fault of one thread is logged and tried again.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from tracegrad.schemas.errors import TracegradError, UnavailableError
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.log.protocol import Log, Offsets, TopicPartition
from tracegrad.schemas.topics import Topic

from ..index.build import IndexProgress, catch_up
from ..index.file import open_index
from ..views.watch import stage_lags
from .board import Board, TopicCount

logger = logging.getLogger(__name__)

FOLDED = {
    Topic.TRAINING_STEPS: None,
    Topic.WEIGHTS: None,
    Topic.WEIGHT_ACKS: None,
    Topic.PROCESS_STATUS: 2_000,
    Topic.ROLLOUT_EVENTS: 5_000,
    Topic.DEAD_LETTERS: 2_000,
}
"""Topic -> of each partition at most so many of the last records; None: all. Episodes, calls and spans, the bulk of a
run, are not among them."""
_POLL_S = 0.5
_MEASURE_S = 3.0
_FILL_S = 3.0
_PATIENCE_S = 5.0
_AGAIN_S = 2.0
_SETTLE_S = 0.05


class BoardReader:
    """The threads of one page; `start` once the board has its log."""

    def __init__(
        self, board: Board, stop: threading.Event, *, starts: Mapping[TopicPartition, int], folds: bool = True
    ) -> None:
        """
        Args:
            starts: where the run began on the topics that it shares with others.
            folds: whether the board lacks what lies on the topics.
        """
        self._board, self._stop, self._starts = board, stop, starts
        self.is_busy = False
        """Whether the index is being filled."""
        self.num_filled = 0
        """How often it was filled to the end that the topics had."""
        work = [("measure", self._measure), ("index", self._fill_as_asked)]
        work += [("fold", self._fold)] if folds else []
        self._threads = [
            threading.Thread(target=self._again, args=(name, what), name=f"page-{name}", daemon=True)
            for name, what in work
        ]

    def start(self) -> None:
        """Begins; the topics must exist, or are waited for."""
        for thread in self._threads:
            thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def settle(self, timeout_s: float, stop: threading.Event | None = None) -> bool:
        """Measures, and waits until all that lay on the folded topics then is folded, or `stop` is set. False: it is
        not."""
        board, until = self._board, time.monotonic() + timeout_s
        counts, ends = _measured(board)
        due = {
            TopicPartition(board.topics.name(topic), number): at.end
            for topic in FOLDED
            for number, at in ends.get(topic, {}).items()
        }
        while not (board.is_read and all(board.positions.get(where, 0) >= end for where, end in due.items())):
            if time.monotonic() > until or (stop is not None and stop.is_set()):
                return False
            time.sleep(_SETTLE_S)
        with board.lock:
            board.counts, board.ends = counts, ends
            board.changed()
        return True

    def _again(self, name: str, what: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                what()
            except (TracegradError, sqlite3.Error) as error:
                if self._stop.is_set():
                    return
                logger.warning("page: %s: %s", name, error)
                self._board.set_trouble(f"nothing new is read: {error}")
                self._stop.wait(_AGAIN_S)

    def _fold(self) -> None:
        board = self._board
        log, topics = board.opened, board.topics
        assert log is not None
        starts = dict(self._starts)
        for topic, last in FOLDED.items():
            for number, at in log.offsets(topics.name(topic)).items() if last is not None else ():
                where = TopicPartition(topics.name(topic), number)
                starts[where] = max(at.begin, at.end - (last or 0), starts.get(where, 0))
        chunks = follow(
            log, [topics.name(topic) for topic in FOLDED], starts=starts, may_skip=True, poll_s=_POLL_S, stop=self._stop
        )
        with closing(chunks):
            for chunk in chunks:
                if chunk.records or (chunk.is_caught_up and not board.is_read):
                    with board.lock:
                        for record in chunk.records:
                            board.fold(record)
                        board.is_read = board.is_read or chunk.is_caught_up
                        board.changed()
                board.positions = dict(chunk.positions)

    def _measure(self) -> None:
        """How the topics stand; also what tells that the broker answers."""
        board = self._board
        while not self._stop.is_set():
            if board.is_watched:
                counts, ends = _measured(board)
                board.set_trouble("")
                if counts != board.counts:
                    with board.lock:
                        board.counts, board.ends = counts, ends
                        board.changed()
            self._stop.wait(_MEASURE_S if board.is_watched else _POLL_S)

    def _fill_as_asked(self) -> None:
        """Once each time that somebody asks, and of a live run not at once again."""
        while not self._stop.is_set():
            if not self._board.wanted.wait(_POLL_S):
                continue
            self.is_busy = True
            self._board.wanted.clear()
            try:
                self._fill()
            finally:
                self.is_busy = False
            self._stop.wait(_FILL_S if self._board.about.is_live else 0.0)

    def _fill(self) -> None:
        board = self._board
        assert board.opened is not None
        with open_index(board.index_path) as connection:
            catch_up(
                board.opened, board.topics, board.about.policy, connection, tell=self._tell, patience_s=_PATIENCE_S
            )
        self.num_filled += 1
        if not board.is_indexed:
            board.is_indexed = True
            board.changed()

    def _tell(self, progress: IndexProgress) -> None:
        if progress != self._board.index_progress:
            self._board.index_progress = progress
            self._board.changed()


def _log(board: Board) -> Log:
    """Taken once for a whole measure: a broker that no view needs any more may leave the board in the midst of one."""
    if board.opened is None:
        raise UnavailableError("the run's broker has been closed, since no view needs it")
    return board.opened


def _ends(board: Board) -> dict[Topic, Mapping[int, Offsets]]:
    log = _log(board)
    found: dict[Topic, Mapping[int, Offsets]] = {}
    for topic in Topic:
        # One that was renamed away, or may not be read, hides no other.
        with contextlib.suppress(ValueError, LookupError):
            found[topic] = log.offsets(board.topics.name(topic))
    return found


def _measured(board: Board) -> tuple[dict[Topic, TopicCount], dict[Topic, Mapping[int, Offsets]]]:
    """How each topic stands; where its partitions begin and end."""
    ends = _ends(board)
    lag = stage_lags(_log(board), board.topics, ends)
    return {
        topic: TopicCount(num=sum(at.end - at.begin for at in kept.values()), lag=lag.get(topic, {}))
        for topic, kept in ends.items()
    }, ends
