"""The range ledger against a naive model, and its cost behind one open episode."""

from __future__ import annotations

import random
import sys

from tests.seeds import any_seed
from tracegrad.schemas.log.ledger import Ledger, PartitionLedger
from tracegrad.schemas.log.protocol import Position, TopicPartition

WHERE = TopicPartition("rollouts", 0)


class NaiveLedger:
    """The same rules with a set of single offsets."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.next_offset: int | None = None

    def deliver(self, offset: int) -> bool:
        if self.next_offset is not None and offset < self.next_offset:
            return False
        self.open.add(offset)
        self.next_offset = offset + 1
        return True

    def done(self, offset: int) -> None:
        self.open.discard(offset)

    @property
    def low_water(self) -> int | None:
        return min(self.open) if self.open else self.next_offset


def _num_runs(offsets: set[int]) -> int:
    return sum(1 for offset in offsets if offset - 1 not in offsets)


@any_seed
def test_ledger_equals_the_naive_model_under_random_histories(seed: int) -> None:
    """Deliveries with gaps and repeats, and acknowledgements in any order, doubled, or of unknown offsets."""
    rng = random.Random(seed)
    ledger, naive = PartitionLedger(), NaiveLedger()
    cursor = rng.randrange(100)
    for _ in range(600):
        if rng.random() < 0.55:
            offset = cursor if rng.random() < 0.9 else max(0, cursor - rng.randrange(5))
            assert ledger.deliver(offset) == naive.deliver(offset)
            cursor = max(cursor, offset + 1) + (rng.randrange(4) if rng.random() < 0.1 else 0)
        else:
            offset = rng.choice(sorted(naive.open)) if naive.open and rng.random() < 0.9 else rng.randrange(cursor + 9)
            ledger.done(offset)
            naive.done(offset)
        assert ledger.low_water == naive.low_water
        assert ledger.next_offset == naive.next_offset
        assert ledger.num_open == len(naive.open)
        assert len(ledger._starts) == _num_runs(naive.open)


def test_any_number_of_offsets_behind_one_open_episode_stays_small() -> None:
    """Memory follows the runs of open offsets, so the number of offsets behind the open one does not show."""
    ledger = PartitionLedger()
    ledger.deliver(0)
    for offset in range(1, 40_000):
        ledger.deliver(offset)
        ledger.done(offset)
    assert ledger.low_water == 0
    assert len(ledger._starts) == 1
    for offset in range(40_000, 80_000):
        ledger.deliver(offset)
    assert ledger.num_open == 40_001
    assert len(ledger._starts) == 2
    held = sys.getsizeof(ledger._starts) + sys.getsizeof(ledger._ends)
    assert held < 1024


def test_done_of_an_older_epoch_is_ignored() -> None:
    """Work begun before a rebalance must not acknowledge what came again after it."""
    ledger = Ledger()
    old = ledger.reset()
    ledger.deliver("events", 0, 7)
    new = ledger.reset()
    ledger.deliver("events", 0, 7)
    ledger.done([Position("events", 0, 7)], epoch=old)
    assert ledger.committable() == {TopicPartition("events", 0): 7}
    ledger.done([Position("events", 0, 7)], epoch=new)
    assert ledger.committable() == {TopicPartition("events", 0): 8}


def test_partitions_are_independent_and_unchanged_marks_are_not_committed_again() -> None:
    """Only what moved since the last commit is offered."""
    ledger = Ledger()
    epoch = ledger.reset()
    for partition in (0, 1):
        assert ledger.deliver("events", partition, 3)
    assert not ledger.deliver("events", 0, 3)
    ledger.done([Position("events", 1, 3)], epoch=epoch)
    marks = ledger.committable()
    assert marks == {TopicPartition("events", 0): 3, TopicPartition("events", 1): 4}
    ledger.committed(marks, epoch=epoch)
    assert ledger.committable() == {}
    ledger.done([Position("events", 0, 3), Position("other", 0, 3)], epoch=epoch)
    assert ledger.committable() == {TopicPartition("events", 0): 4}
    assert ledger.num_open == 0


def at(offset: int) -> Position:
    """A position of the test's partition."""
    return Position(*WHERE, offset)


def test_a_partition_that_was_away_begins_anew() -> None:
    """Neither its old open records nor its old place may decide what is committed."""
    ledger = Ledger()
    ledger.redeliver(at(7))
    ledger.retain({})
    assert ledger.committable() == {}
    ledger.done([at(7)], epoch=0)
    ledger.redeliver(at(4))
    assert ledger.committable() == {WHERE: 4}
    ledger.retain({WHERE: 4})  # set back while nothing was read
    assert ledger.committable() == {}
    ledger.redeliver(at(5))
    ledger.redeliver(at(4))  # comes again after a rebalance within one read
    ledger.done([at(4)], epoch=0)
    assert ledger.committable() == {WHERE: 5}
