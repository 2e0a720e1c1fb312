"""The partitions that a worker holds now: what came from them, what was folded, and what must be known before.

    revoked -> everything forgotten -> rebalance complete -> starts and markers read -> messages, one at a time

In: Faust's messages and its word that partitions go and come. Out: emissions, in the order of the messages. Invariants:
the fold sees no record before the markers of its partitions, none twice in an assignment, none of a former one; an
offset that was passed over without need ends the process. Failure: told to `fail`, since Faust would log it and go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracegrad.schemas.errors import FatalError, RecordError, UnavailableError
from tracegrad.schemas.fold import Emission, Fold
from tracegrad.schemas.log.follow import follow, in_thread
from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.protocol import AWAY_S, Headers, Log, Position, Record, TopicPartition
from tracegrad.schemas.metrics import DELIVERIES_DROPPED, OFFSETS_WITHOUT_RECORD, RECORDS, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.retry import retry
from tracegrad.schemas.topics import Topics

from ..stage_fold import dead_letter
from .emissions import Emissions
from .faust_app import FaustSeam
from .liveness import STALL_S, Liveness, group_starts
from .poison import PoisonList

logger = logging.getLogger(__name__)

_MARKERS_AT_ONCE = 5_000
"""Folded at a time, so that the event loop stays alive."""


@dataclass(kw_only=True)
class Assignment:
    """One event loop only. `ledger` and `emissions` are the worker's, and live on from one assignment to the next."""

    fold: Fold
    topics: Topics
    log: Log
    seam: FaustSeam
    ledger: Ledger
    emissions: Emissions
    metrics: Metrics
    poison: PoisonList
    liveness: Liveness
    fail: Callable[[BaseException], None]
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """Where each assigned partition began in this epoch."""
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of each assigned partition, as of the last look."""
    is_ready: bool = False
    """Whether what must be known is known, and messages count."""
    is_closing: bool = False
    """Set at the end: messages are dropped, for they come again."""
    _folding: Position | None = None

    def positions(self) -> dict[TopicPartition, int] | None:
        """The next offset of each partition; None while partitions are taken over."""
        if not self.is_ready:
            return None
        return {where: self.ledger.next_offset(where) or start for where, start in self.starts.items()}

    async def on_message(self, message: Any) -> None:
        """Folds the next message and hands its emission on; waits while the broker is slow."""
        if self.is_closing or not self.is_ready or not self.seam.is_current(message):
            self.metrics.add(DELIVERIES_DROPPED, "stale")
            return
        epoch = self.ledger.epoch
        where = TopicPartition(message.topic, message.partition)
        expected = self.ledger.next_offset(where) or self.starts.get(where, message.offset)
        if message.offset > expected:
            await self._judge_jump(where, expected, message.offset)
            if epoch != self.ledger.epoch:
                return
        if not self.ledger.deliver(message.topic, message.partition, message.offset):
            self.metrics.add(DELIVERIES_DROPPED, "again")
            return
        record = _record(message)
        await self.emissions.emit(self._fold(record), record, epoch=epoch)

    def _fold(self, given: Record) -> Emission:
        record = self.log.judged(given)
        if record is None:
            return Emission(done=(given.position,))
        # Kept only while folding: an error that leaves the agent is then known to be this record's doing.
        self._folding = record.position
        if record.position in self.poison:
            emission = self._poison_letter(record)
        else:
            with self.poison.folding(record.position):
                emission = self.fold.fold(record)
        self._folding = None
        self.metrics.add(RECORDS)
        return emission

    async def _judge_jump(self, where: TopicPartition, expected: int, delivered: int) -> None:
        await asyncio.to_thread(self.liveness.refuse_skipped, where, expected=expected, delivered=delivered)
        self.metrics.add(OFFSETS_WITHOUT_RECORD, num=delivered - expected)
        logger.debug("streams %s: no records at %s[%d]@%d..%d", self.fold.stage, *where, expected, delivered - 1)

    def _poison_letter(self, record: Record) -> Emission:
        error = RecordError(
            f"expected folding {len(record.value or b'')} bytes to end, got the process's end several times; its log "
            "says how. Where memory ran out, give it more and lower [streams] max_open_bytes",
            reason=Reason.POISON,
        )
        logger.error("streams %s: %s is passed over as a dead letter: %s", self.fold.stage, record, error)
        letter = dead_letter(record, error, stage=self.fold.stage)
        return Emission(outputs=(letter,), done=(record.position,))

    def on_agent_end(self, error: BaseException | None) -> None:
        """The agent never ends by itself: whatever it was ends the process."""
        if self._folding is not None and error is not None and not isinstance(error, FatalError):
            count = self.poison.add_end(self._folding)
            logger.error("streams %s: folding %s failed, time %d", self.fold.stage, self._folding, count)
        self.fail(error or UnavailableError("expected the Faust agent to run, got its end"))

    async def on_revoked(self, *_: Any, **__: Any) -> None:
        """All that was not acknowledged comes again, to us or to another, so nothing of it may be kept."""
        self._reset()

    async def on_rebalance_complete(self, *_: Any, **__: Any) -> None:
        """Begins anew also with partitions that stayed: their un-acknowledged messages come again too."""
        epoch = self._reset()
        try:
            await self._take_over(epoch)
        except asyncio.CancelledError:
            self.fail(UnavailableError("expected the markers of the new partitions to be read, got a cancellation"))
            raise
        except Exception as error:
            # Faust would log it and go on without the markers.
            self.fail(error)

    def _reset(self) -> int:
        self.is_ready = False
        self.starts = {}
        self.lag = {}
        self.fold.reset()
        return self.ledger.reset()

    async def _take_over(self, epoch: int) -> None:
        """Reads what must be known before the first event. Void when the next rebalance begins meanwhile."""
        began = time.monotonic()
        assigned = set(self.seam.assignment())
        inputs = sorted({where.topic for where in assigned})
        starts = await asyncio.to_thread(
            retry,
            lambda: group_starts(self.log, self.seam.group, inputs),
            doing="asking for the group's offsets",
            patience_s=AWAY_S,
        )
        num_markers = await self._read_markers(sorted({where.partition for where in assigned}), epoch)
        if epoch != self.ledger.epoch:
            return
        self.poison.load()
        self.starts = {where: start for where, start in starts.items() if where in assigned}
        self.is_ready = True
        logger.info(
            "streams %s: epoch %d, %d partitions, %d markers read in %.2f s",
            self.fold.stage,
            epoch,
            len(assigned),
            num_markers,
            time.monotonic() - began,
        )

    async def _read_markers(self, partitions: Sequence[int], epoch: int) -> int:
        """Gives the fold every marker that was acknowledged before this call; void when `epoch` ends meanwhile.

        A commit of the former owner came after its markers, so whatever it committed is known then. Returns their
        number. Raises UnavailableError when the broker gives none for too long.
        """
        if self.fold.marker_topic is None or not partitions:
            return 0
        topic = self.topics.name(self.fold.marker_topic)
        num_markers, moved_at = 0, time.monotonic()
        steps = follow(
            self.log, [topic], partitions=partitions, poll_s=0.5, max_records=_MARKERS_AT_ONCE, patience_s=STALL_S
        )
        async with contextlib.aclosing(in_thread(steps)) as chunks:
            async for chunk in chunks:
                if epoch != self.ledger.epoch:
                    break
                self.fold.restore(chunk.records)
                num_markers += len(chunk.records)
                if chunk.is_caught_up:
                    break
                moved_at = time.monotonic() if chunk.records else moved_at
                if time.monotonic() - moved_at > STALL_S:
                    raise UnavailableError(f"expected the markers of {topic!r} up to its end, got none in {STALL_S} s")
        return num_markers


def _record(message: Any) -> Record:
    """The log's record of a Faust message; Faust's own event would keep one header of each name only. A header without
    a value, which anybody may write, has an empty one, as for every reader."""
    given = message.headers or ()
    pairs = given.items() if isinstance(given, Mapping) else given
    headers: Headers = tuple((name, value if value is not None else b"") for name, value in pairs)
    return Record(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=headers,
        timestamp_ms=round(message.timestamp * 1000) if message.timestamp else 0,
    )
