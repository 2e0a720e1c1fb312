"""The file in a run's folder that a page leaves for the next one.

In: a run's folder whose broker is its own. Out: `page.msgpack`, and what it holds while it is up to date. Invariants:
written whole, its owner's alone; up to date is what the sizes of the segments, and the run's last start, say; what was
learned goes by the episodes' own. Failure: a file that cannot be read or written is none.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable

import msgspec

from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.episodes.learned import keep_learned
from tracegrad.consumers.page.kept import MAX_BYTES, Kept, keep, read_kept
from tracegrad.consumers.page.reading import FOLDED, Reading
from tracegrad.schemas.topics import Topic

from ..files import write_atomically
from ..history.index import sizes_of
from ..run.run_dir import RunDir

__all__ = ["KEPT", "current", "learned_mark_of", "leave", "leave_learned", "mark_of"]

logger = logging.getLogger(__name__)
KEPT = "page.msgpack"
_MARKED = frozenset(FOLDED) - {Topic.PROCESS_STATUS}
"""Processes tell how they end after the page has ended; of a run that has ended none runs anyhow."""


def mark_of(run_dir: RunDir) -> str:
    """Of what lies on the folded topics: another one once something came, or the run started again."""
    return _mark(run_dir, _MARKED)


def learned_mark_of(run_dir: RunDir) -> str:
    """Of the episodes, likewise."""
    return _mark(run_dir, [Topic.EPISODES])


def _mark(run_dir: RunDir, topics: Iterable[Topic]) -> str:
    started = run_dir.endpoints_file.stat().st_mtime_ns
    return hashlib.sha256(repr((started, sizes_of(run_dir, topics))).encode()).hexdigest()


def current(run_dir: RunDir) -> Kept | None:
    """What a page has left, while nothing came since."""
    path = run_dir.path / KEPT
    try:
        kept = read_kept(path.read_bytes(), run_dir.record.hash) if path.stat().st_size <= MAX_BYTES else None
    except OSError:
        return None
    if kept is None or kept.mark != mark_of(run_dir):
        return None
    if kept.learned is not None and kept.learned.mark != learned_mark_of(run_dir):
        return msgspec.structs.replace(kept, learned=None)
    return kept


def leave(
    run_dir: RunDir, board: Board, reading: Reading, *, timeout_s: float, stop: threading.Event | None = None
) -> str | None:
    """Writes the file, once all is folded that lies on the topics now; their mark. Not later than `timeout_s`, nor once
    `stop` is set: None. Raises UnavailableError when the broker does not tell."""
    mark = mark_of(run_dir)
    if not reading.settle(timeout_s, stop):
        return None
    _write(run_dir, board, mark)
    return mark


def leave_learned(run_dir: RunDir, board: Board, mark: str, own: str) -> None:
    """Writes the file of a board that is read again, with what was learned; the index lacks nothing. Blocks. Raises
    UnavailableError.

    Args:
        mark: of what is folded, by `leave` or the file that another page left.
        own: `learned_mark_of` before the index was filled: what comes meanwhile may be in neither.
    """
    board.learned = keep_learned(board, own)
    if board.learned is not None:
        _write(run_dir, board, mark)
        board.changed()


def _write(run_dir: RunDir, board: Board, mark: str) -> None:
    data = keep(board, mark)
    try:
        if data is not None:
            write_atomically(run_dir.path / KEPT, data, is_private=True)
    except OSError as error:
        logger.warning("page: the next page reads the topics again: expected to write %s, got %s", KEPT, error)
