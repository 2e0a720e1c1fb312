"""What a reader refuses: counted by topic and reason, and watched for a row of records none of which can be decoded.

In: each record that could be decoded, and each that could not. Out: counts, log lines, an alarm at every
`MAX_IN_A_ROW`th of a row in one partition. Invariant: on topics that others reach it is an alarm and never a stop;
where only our own processes write, such a row means that a wrong release reads or wrote, and a stage that may stop
does so before it has committed any of it. Failure: UnreadableError for that. Not thread-safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from ..errors import RecordError, UnreadableError
from ..metrics import RECORDS_REFUSED, UNREADABLE_ROWS, Metrics
from ..topics import Topic, Topics
from .protocol import Record, TopicPartition

MAX_IN_A_ROW = 100
"""Single records are damaged or forged; so many one after the other are a wrong deployment."""
_INTERNAL = (
    Topic.EPISODE_EVENTS,
    Topic.CLOSED_EPISODES,
    Topic.CLOSED_GROUPS,
    Topic.EPISODES,
    Topic.TRANSITIONS,
)
"""Written by our own stages alone."""

logger = logging.getLogger(__name__)


class Refusals:
    """Of one reader.

    Args:
        then: is given each, with its error, as for a dead letter where no stage reads the topic as a group.
        stops: this reader is the stage whose input it is: it must not pass over a row on an internal topic.
    """

    def __init__(
        self,
        topics: Topics,
        metrics: Metrics,
        *,
        then: Callable[[Record, RecordError], None] = lambda record, error: None,
        stops: bool = False,
    ) -> None:
        self._metrics = metrics
        self._then = then
        self._stopping = frozenset(topics.name(topic) for topic in _INTERNAL) if stops else frozenset()
        self._rows: dict[TopicPartition, tuple[int, int]] = {}
        """Partition -> the first offset of the present row, and how many records it has."""

    def accept(self, record: Record) -> None:
        """One that could be decoded; it ends the row."""
        if self._rows:
            self._rows.pop(TopicPartition(record.topic, record.partition), None)

    def refuse(self, record: Record, error: RecordError) -> bool:
        """One that could not. True: it may not be acknowledged before `accept` has ended the row.

        Raises UnreadableError where it is one more than this reader may pass over.
        """
        where = TopicPartition(record.topic, record.partition)
        first, num = self._rows.get(where, (record.offset, 0))
        self._rows[where] = first, num + 1
        self._metrics.add(RECORDS_REFUSED, record.topic, error.reason)
        self._then(record, error)
        if not num:
            logger.warning("refused %s (%s): %s", record, error.reason, error)
        is_ours = record.topic in self._stopping
        if (num + 1) % MAX_IN_A_ROW:
            return is_ours
        self._metrics.add(UNREADABLE_ROWS, record.topic)
        told = (
            f"expected records of {record.topic!r} partition {record.partition} that can be decoded, got {num + 1} in "
            f"a row that cannot, offsets {first} to {record.offset}, the last: {error}"
        )
        if is_ours:
            raise UnreadableError(
                f"{told}; writer and reader are of releases that do not fit? None of them is committed: mend one and "
                "start again, or move the group's offset past them"
            )
        logger.error("%s", told)
        return False

    @property
    def rows(self) -> Collection[TopicPartition]:
        """The partitions whose last record could not be decoded."""
        return self._rows.keys()

    def reset(self) -> None:
        """Forgets the rows: what was not committed will come again."""
        self._rows.clear()
