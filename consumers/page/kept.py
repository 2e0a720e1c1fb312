"""What a page has folded, as bytes that lie in the run's folder, so that the next page has its curves at once.

In: a board that is read, the mark of the topics that it was made of. Out: bytes, and of bytes with that mark the board
again. Invariants: records are kept as they lie on topics and are folded again by the same rules, so that a file says
nothing that a topic could not; bounded. Failure: bytes that are damaged, another run's, or another release's are
passed over: all that they held lies on topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Offsets, Record
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessStatus
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, EpochClaim
from tracegrad.schemas.topics import Topic

from .board import Board, TopicCount
from .episodes.told import Kept as Learned

__all__ = ["MAX_BYTES", "Kept", "keep", "read_kept", "restore"]

MAX_BYTES = 64 * 1024 * 1024
"""20,000 steps and as many versions; a file of more would take longer to read than the topics."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: Literal["page/1"] = "page/1"
    run: RunHash
    mark: str
    """Of the topics; another one: something came since."""
    records: list[tuple[Topic, bytes]]
    """To be folded in this order."""
    dead_letters: list[tuple[str, str, int]]
    """Stage, reason, how many."""
    counts: dict[Topic, TopicCount]
    ends: dict[Topic, dict[int, Offsets]]
    learned: Learned | None = None
    """None: the index was not filled, or a record was gone."""

    def __repr__(self) -> str:
        return f"Kept({self.run}, {len(self.records)} records)"


def keep(board: Board, mark: str) -> bytes | None:
    """What the views need; None: more than is kept."""
    with board.lock:
        kept = Kept(
            run=board.about.hash,
            mark=mark,
            records=list(_records(board)),
            dead_letters=[(*what, num) for what, num in board.dead_letters.items()],
            counts={topic: count._replace(per_s=None) for topic, count in board.counts.items()},
            ends={topic: dict(ends) for topic, ends in board.ends.items()},
            learned=board.learned,
        )
    for one in (kept, msgspec.structs.replace(kept, learned=None)):
        data = msgspec.msgpack.encode(one)
        if len(data) <= MAX_BYTES:
            return data
    return None


def read_kept(data: bytes, run: RunHash) -> Kept | None:
    """None: it is not this run's, or not to be read."""
    try:
        kept = msgspec.msgpack.decode(data, type=Kept)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return kept if kept.run == run else None


def restore(board: Board, kept: Kept) -> None:
    """Fills a board that is empty."""
    with board.lock:
        for topic, value in kept.records:
            board.fold(Record(topic=board.topics.name(topic), partition=0, offset=0, key=None, value=value))
        for stage, reason, num in kept.dead_letters:
            board.dead_letters[stage, reason] = num
        board.counts = kept.counts
        board.ends = dict[Topic, Mapping[int, Offsets]](kept.ends)
        board.learned = kept.learned
        board.is_read = True
        board.changed()


def _records(board: Board) -> Iterator[tuple[Topic, bytes]]:
    state, about = board.state, board.about
    steps = {(one.step, one.epoch): one for one in (*state.steps, *filter(None, [state.newest_step]))}
    for step in steps.values():
        yield Topic.TRAINING_STEPS, TRAINING_STEPS.encode(step)
    epoch = None
    for one in sorted(state.versions.values(), key=lambda version: (version.epoch, version.version)):
        if one.epoch != epoch:
            epoch = one.epoch
            claim = EpochClaim(policy=about.policy, run=about.hash, epoch=epoch, trainer_id="")
            yield Topic.WEIGHTS, WEIGHTS.encode(claim)
        yield Topic.WEIGHTS, WEIGHTS.encode(one)
    for held_out in state.held_out.by_number.values():
        yield Topic.WEIGHTS, WEIGHTS.encode(held_out)
    for ack in state.acks.values():
        yield Topic.WEIGHT_ACKS, WEIGHT_ACKS.encode(ack)
    statuses: list[ProcessStatus] = [*state.reports.values(), *state.supervised.values()]
    for status in statuses:
        yield Topic.PROCESS_STATUS, PROCESS_STATUS.encode(status)
