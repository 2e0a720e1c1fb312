"""Which inputs are still needed: the ledger behind every commit, of the streams workers and of the runner.

In: offsets as they are delivered, and positions as the effects that depended on them are acknowledged.
Out: per partition the low-water mark, the only offset that may be committed: the first one still open, else the
next one. Kept: the mark never passes an open offset, an offset seen already in this assignment is refused, and
what a former assignment was doing is ignored (`epoch`). Memory follows the number of runs of open offsets, not the
distance between the mark and the log's end: 10 million offsets behind one open episode are one or two ranges.
Failure: none; it neither blocks nor raises. Not thread-safe. Faust's own acknowledgement must be off beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from .protocol import Position, TopicPartition


class PartitionLedger:
    """The open offsets of one partition, as sorted, disjoint, half-open ranges."""

    __slots__ = ("_ends", "_starts", "next_offset", "num_open")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.next_offset: int | None = None
        """One past the last delivered offset; None before the first."""
        self.num_open = 0

    @property
    def low_water(self) -> int | None:
        """The offset that may be committed; None before the first delivery."""
        return self._starts[0] if self._starts else self.next_offset

    def deliver(self, offset: int) -> bool:
        """Opens an offset. False: it was delivered before, or lies below one that was."""
        if self.next_offset is not None and offset < self.next_offset:
            return False
        if self._ends and self._ends[-1] == offset:
            self._ends[-1] = offset + 1
        else:
            self._starts.append(offset)
            self._ends.append(offset + 1)
        self.next_offset = offset + 1
        self.num_open += 1
        return True

    def done(self, offset: int) -> None:
        """Closes an offset; nothing for one that is not open."""
        starts, ends = self._starts, self._ends
        index = bisect_right(starts, offset) - 1
        if index < 0 or offset >= ends[index]:
            return
        start, end = starts[index], ends[index]
        if start == offset and end == offset + 1:
            del starts[index], ends[index]
        elif start == offset:
            starts[index] = offset + 1
        elif end == offset + 1:
            ends[index] = offset
        else:
            ends[index] = offset
            starts.insert(index + 1, offset + 1)
            ends.insert(index + 1, end)
        self.num_open -= 1


class Ledger:
    """The partitions of the present assignment."""

    def __init__(self) -> None:
        self.epoch = 0
        """Grows with every reset; work begun under an older one must not count."""
        self._partitions: dict[tuple[str, int], PartitionLedger] = {}
        self._committed: dict[TopicPartition, int] = {}

    def reset(self) -> int:
        """Forgets everything, because partitions were revoked or assigned. Returns the new epoch."""
        self.epoch += 1
        self._partitions.clear()
        self._committed.clear()
        return self.epoch

    def deliver(self, topic: str, partition: int, offset: int) -> bool:
        """Opens an offset. False: seen already in this assignment, so it must not be folded again."""
        ledger = self._partitions.get((topic, partition))
        if ledger is None:
            ledger = self._partitions[topic, partition] = PartitionLedger()
        return ledger.deliver(offset)

    def redeliver(self, position: Position) -> None:
        """Opens an offset of a member that keeps what it works on; one that comes again begins its partition anew."""
        if not self.deliver(*position):
            self._forget(TopicPartition(position.topic, position.partition))
            self.deliver(*position)

    def retain(self, positions: Mapping[TopicPartition, int]) -> None:
        """Forgets partitions that were taken away or set back: their records come again, to us or to another."""
        for where in [TopicPartition(*known) for known in self._partitions]:
            if positions.get(where, -1) < (self.next_offset(where) or 0):
                self._forget(where)

    def _forget(self, where: TopicPartition) -> None:
        del self._partitions[where]
        self._committed.pop(where, None)

    def done(self, positions: Iterable[Position], *, epoch: int) -> None:
        """Closes positions whose effects are on the log; ignored when `epoch` is over."""
        if epoch != self.epoch:
            return
        for topic, partition, offset in positions:
            ledger = self._partitions.get((topic, partition))
            if ledger is not None:
                ledger.done(offset)

    def next_offset(self, topic_partition: TopicPartition) -> int | None:
        """One past the last delivered offset of a partition; None before the first."""
        ledger = self._partitions.get(topic_partition)
        return ledger.next_offset if ledger is not None else None

    def committable(self) -> dict[TopicPartition, int]:
        """The low-water marks that differ from what was committed in this epoch."""
        marks: dict[TopicPartition, int] = {}
        for (topic, partition), ledger in self._partitions.items():
            where = TopicPartition(topic, partition)
            mark = ledger.low_water
            if mark is not None and mark != self._committed.get(where):
                marks[where] = mark
        return marks

    def committed(self, marks: Mapping[TopicPartition, int], *, epoch: int) -> None:
        """Remembers marks that the broker has stored; ignored when `epoch` is over."""
        if epoch == self.epoch:
            self._committed.update(marks)

    @property
    def num_open(self) -> int:
        """Delivered and not done, over all partitions."""
        return sum(ledger.num_open for ledger in self._partitions.values())
