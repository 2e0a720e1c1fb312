"""Whether a stage still sees what is on the log: at start, at every assignment, and while it runs.

In: committed and delivered offsets, and the log's own. Out: nothing, or an error. Invariants: a committed offset
outside the log is a LogGapError (Faust would skip in silence); a record that lies on the log and was passed over, or
a delivered position that stands still under lag, ends the process with an UnavailableError, so that it is restarted
and reads again. Committed progress proves nothing: it stands still behind one open episode. A broker that is away
proves nothing either: the clocks start anew. All calls block; call each in a thread, one at a time.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import closing

from tracegrad.schemas.errors import ConfigurationError, LogGapError, UnavailableError
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.log.protocol import Log, TopicPartition

logger = logging.getLogger(__name__)

STALL_S = 60.0
"""A delivered position that stands still this long under lag ends the worker, as do markers that do not come."""
_LOOK_RECORDS = 1_000
"""How many offsets a look brings at most."""


def group_starts(log: Log, group: str, topics: Sequence[str]) -> dict[TopicPartition, int]:
    """Where the group goes on in each partition: its committed offset, else 0.

    Raises:
        LogGapError: that lies outside the log. A start of the run mends it where that can be done exactly.
    """
    starts = {}
    for topic in topics:
        # Committed first: it only grows, so that an end read later can only be further on.
        committed = log.committed(group, topic)
        for partition, kept in log.offsets(topic).items():
            start = committed.get(partition, 0)
            if not kept.begin <= start <= kept.end:
                raise LogGapError(
                    f"expected offset {start}, where group {group!r} goes on, within [{kept.begin}, {kept.end}] of "
                    f"{topic!r} partition {partition}, got it outside: records were deleted before they were read, or "
                    "lost; start the run again, which mends what can be mended and says what cannot"
                )
            starts[TopicPartition(topic, partition)] = start
    return starts


def check_partitions(log: Log, topics: Sequence[str], expected: int) -> None:
    """Raises ConfigurationError unless each topic has this many partitions: markers are found by partition number."""
    for topic in topics:
        num_partitions = len(log.offsets(topic))
        if num_partitions != expected:
            raise ConfigurationError(
                f"expected {expected} partitions of {topic!r}, got {num_partitions}; [kafka] partitions is fixed when "
                "a run is made: set it back, or start a new run"
            )


class Liveness:
    """What was delivered against what lies on the log.

    Args:
        stall_s: how long a position may stand still under lag, or an assignment may take.
        look_s: how long to look for a record.
    """

    def __init__(self, log: Log, *, stall_s: float = STALL_S, look_s: float = 10.0) -> None:
        self._log = log
        self._stall_s = stall_s
        self._look_s = look_s
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        self._waiting_since: float | None = None
        self._looks: dict[TopicPartition, tuple[int, Sequence[int]]] = {}
        """Where the last look at a partition began, and the offsets that it found: a topic with many gaps costs few."""

    def refuse_skipped(self, where: TopicPartition, *, expected: int, delivered: int) -> None:
        """Judges a jump in delivered offsets: harmless when the log holds no record in between (compacted, or a
        transaction's control record).

        Raises:
            UnavailableError: a record in between was not delivered, or the broker did not show what lies there.
            LogGapError: the log does not go back to `expected` any more.
        """
        begin, offsets = self._looks.get(where, (0, ()))
        if not (offsets and begin <= expected and delivered <= offsets[-1]):
            offsets = self._look(where, expected)
            if not offsets:
                # Silence proves nothing, while committing past a record that was passed over loses it.
                raise UnavailableError(
                    f"expected the record at offset {delivered} of {where.topic!r} partition {where.partition} within "
                    f"{self._look_s} s, got none from {expected} on; restart and read again"
                )
            self._looks[where] = (expected, offsets)
        found = offsets[bisect_left(offsets, expected)]
        if found < delivered:
            raise UnavailableError(
                f"expected offset {found} of {where.topic!r} partition {where.partition} to be delivered before "
                f"{delivered}, got it passed over; restart and read again"
            )

    def check(self, positions: Mapping[TopicPartition, int] | None, now_s: float) -> dict[TopicPartition, int]:
        """Returns the lag of each partition; None as positions means that the worker waits for an assignment.

        Raises:
            UnavailableError: what is on the log does not arrive here, while the broker answers.
            LogGapError: a delivered position lies past the log's end.
        """
        try:
            ends = self._ends(positions or {})
        except UnavailableError as error:
            logger.warning("liveness: the broker does not answer: %s", error)
            self._since.clear()
            self._waiting_since = None
            return {}
        if positions is None:
            self._waiting_since = now_s if self._waiting_since is None else self._waiting_since
            if now_s - self._waiting_since > self._stall_s:
                raise UnavailableError(f"expected an assignment within {self._stall_s} s, got none; restart")
            return {}
        self._waiting_since = None
        self._since = {where: since for where, since in self._since.items() if where in positions}
        return {where: self._judge(where, position, ends[where], now_s) for where, position in positions.items()}

    def _ends(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic, partition): kept.end
            for topic in sorted({where.topic for where in positions})
            for partition, kept in self._log.offsets(topic).items()
        }

    def _judge(self, where: TopicPartition, position: int, end: int, now_s: float) -> int:
        if position > end:
            raise LogGapError(
                f"expected offset {position} of {where.topic!r} partition {where.partition} within the log, got its "
                f"end at {end}: the topic was made anew or lost records; start a new run"
            )
        seen, since_s = self._since.get(where, (-1, now_s))
        if position == end or position != seen:
            self._since[where] = (position, now_s)
        elif now_s - since_s > self._stall_s:
            if found := self._look(where, position):
                raise UnavailableError(
                    f"expected offset {found[0]} of {where.topic!r} partition {where.partition} to be delivered within "
                    f"{self._stall_s} s, got position {position} standing still; restart"
                )
            self._since[where] = (position, now_s)
        return end - position

    def _look(self, where: TopicPartition, start: int) -> Sequence[int]:
        """The offsets of the next records at or after `start`; empty when none came in time."""
        deadline = time.monotonic() + self._look_s
        chunks = follow(
            self._log,
            [where.topic],
            starts={where: start},
            partitions=[where.partition],
            poll_s=0.5,
            max_records=_LOOK_RECORDS,
            patience_s=self._look_s,
        )
        with closing(chunks):
            for chunk in chunks:
                if chunk.records or time.monotonic() > deadline:
                    return [record.offset for record in chunk.records]
        return ()
