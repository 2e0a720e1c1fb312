"""Which offset a group may commit: below the first one that is still open.

In: offsets delivered and done, per partition. Out: next offsets to commit. Invariant: never past an open one,
never of a partition that another member owns now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .protocol import Position, TopicPartition

__all__ = ["OffsetLedger"]


@dataclass
class _Partition:
    open: set[int] = field(default_factory=set)
    next: int = 0
    committed: int = -1

    @property
    def committable(self) -> int:
        return min(self.open, default=self.next)


class OffsetLedger:
    """Open offsets of the partitions owned now. Not thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Partition] = {}

    def deliver(self, position: Position) -> None:
        """This record was read and is not finished. One that comes again begins its partition anew."""
        where = TopicPartition(position.topic, position.partition)
        partition = self._partitions.get(where)
        if partition is None or position.offset < partition.next:
            partition = self._partitions[where] = _Partition()
        partition.open.add(position.offset)
        partition.next = position.offset + 1

    def reconcile(self, positions: Mapping[TopicPartition, int]) -> None:
        """Forgets partitions that were taken away or set back: their records come again, to us or to another."""
        for where, partition in list(self._partitions.items()):
            if positions.get(where, -1) < partition.next:
                del self._partitions[where]

    def done(self, position: Position) -> None:
        """Nothing depends on this record any more."""
        partition = self._partitions.get(TopicPartition(position.topic, position.partition))
        if partition is not None:
            partition.open.discard(position.offset)

    def due(self) -> dict[TopicPartition, int]:
        """Next offsets that have grown since they were last confirmed."""
        return {
            where: partition.committable
            for where, partition in self._partitions.items()
            if partition.committable > partition.committed
        }

    def confirm(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These were committed."""
        for where, offset in offsets.items():
            if where in self._partitions:
                self._partitions[where].committed = offset

    @property
    def num_open(self) -> int:
        """Records read and not finished."""
        return sum(len(partition.open) for partition in self._partitions.values())
