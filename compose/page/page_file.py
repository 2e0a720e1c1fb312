"""`page.msgpack` in a run's folder: what a page has folded, so that the next one has its curves at once.

In: a board that is read, the run's folder, whose broker is its own. Out: the file; of a file that is up to date the
board again. Invariants: records are folded again by the same rules, so that the file says nothing that a topic could
not; up to date is what the sizes of the segments, and the run's last start, say; bounded as `RunState` is; written
whole, its owner's alone. Failure: a file that is damaged, another run's, or cannot be read or written is none: all of
it lies on topics.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Literal

import msgspec

from tracegrad.consumers.page.board import Board, TopicCount
from tracegrad.consumers.page.board_reader import FOLDED, BoardReader
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Offsets, Record
from tracegrad.schemas.records.process_status import PROCESS_STATUS
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, EpochClaim, WeightRecord
from tracegrad.schemas.topics import Topic

from ..files import write_atomically
from ..history.index import sizes_of
from ..run.run_dir import RunDir

logger = logging.getLogger(__name__)
PAGE_FILE = "page.msgpack"
_MARKED = frozenset(FOLDED) - {Topic.PROCESS_STATUS}
"""Processes tell how they end after the page has ended; of a run that has ended none runs anyhow."""


class PageFile(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in it."""

    schema: Literal["page/2"] = "page/2"
    run: RunHash
    mark: str
    """`mark_of` the topics; another one: something came since."""
    records: list[tuple[Topic, bytes]]
    """To be folded in this order."""
    dead_letters: list[tuple[str, str, int]]
    """Stage, reason, how many."""
    counts: dict[Topic, TopicCount]
    ends: dict[Topic, Mapping[int, Offsets]]


def mark_of(run_dir: RunDir) -> str:
    """Of what lies on the folded topics: another one once something came, or the run started again."""
    stood = (run_dir.endpoints_file.stat().st_mtime_ns, sizes_of(run_dir, _MARKED))
    return hashlib.sha256(repr(stood).encode()).hexdigest()


def write_page_file(
    run_dir: RunDir, board: Board, reading: BoardReader, *, timeout_s: float, stop: threading.Event | None = None
) -> None:
    """Once all is folded that lies on the topics now; not later than `timeout_s`, nor once `stop` is set. Raises
    UnavailableError when the broker does not tell."""
    mark = mark_of(run_dir)
    if not reading.settle(timeout_s, stop):
        return
    with board.lock:
        file = PageFile(
            run=board.about.hash,
            mark=mark,
            records=list(_records(board)),
            dead_letters=[(*what, num) for what, num in board.dead_letters.items()],
            counts=board.counts,
            ends=board.ends,
        )
    try:
        write_atomically(run_dir.path / PAGE_FILE, msgspec.msgpack.encode(file), is_private=True)
    except OSError as error:
        logger.warning("page: the next page reads the topics again: expected to write %s, got %s", PAGE_FILE, error)


def _records(board: Board) -> Iterator[tuple[Topic, bytes]]:
    state, weights = board.state, list[WeightRecord]()
    for one in sorted(state.versions.values(), key=attrgetter("epoch", "version")):
        # A version counts behind the claim of its epoch; to be told of a claim again changes nothing.
        weights += [EpochClaim(policy=one.policy, run=one.run, epoch=one.epoch, trainer_id=""), one]
    steps = {(one.step, one.epoch): one for one in (*state.steps, *filter(None, [state.newest_step]))}
    told: list[tuple[Topic, Any, Iterable[Any]]] = [
        (Topic.TRAINING_STEPS, TRAINING_STEPS, steps.values()),
        (Topic.WEIGHTS, WEIGHTS, [*weights, *state.held_out.by_number.values()]),
        (Topic.WEIGHT_ACKS, WEIGHT_ACKS, state.acks.values()),
        (Topic.PROCESS_STATUS, PROCESS_STATUS, [*state.reports.values(), *state.supervised.values()]),
    ]
    yield from ((topic, codec.encode(one)) for topic, codec, many in told for one in many)


def read_page_file(run_dir: RunDir) -> PageFile | None:
    """The file, while it is up to date."""
    try:
        file = msgspec.msgpack.decode((run_dir.path / PAGE_FILE).read_bytes(), type=PageFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return file if (file.run, file.mark) == (run_dir.record.hash, mark_of(run_dir)) else None


def restore_board(board: Board, file: PageFile) -> None:
    """Fills a board that is empty."""
    with board.lock:
        for topic, value in file.records:
            board.fold(Record(topic=board.topics.name(topic), partition=0, offset=0, key=None, value=value))
        board.dead_letters.update({(stage, reason): num for stage, reason, num in file.dead_letters})
        board.counts, board.ends, board.is_read = file.counts, file.ends, True
        board.changed()
