"""The batch former: intervals, exclusions, the hash, the accounting; and the source's offset check."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import pytest

from tests.memory_log import MemoryLog
from tests.trainer.batch.opening import gid, open_batch
from tests.trainer.material import append_groups, group_bytes, record, segment, summary, turn
from tests.versions import OTHER_RUN, RUN, sampled_by
from tracegrad.schemas.errors import LogGapError
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.records.training import Accounting, hash_batch
from tracegrad.schemas.records.transitions import encode_group
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.batches import Batch, TransitionsReader, account


def batch_of(
    values: Sequence[bytes | None], *, num_groups: int, consumed: Collection[str] = (), version: int = 0
) -> Batch:
    """The batch at the beginning of these records."""
    batch = open_batch(values, num_groups=num_groups, consumed=consumed)
    assert batch.is_complete
    return batch.close(run=RUN, version=version, max_staleness=2)


def test_batch_ends_with_the_gth_new_group() -> None:
    """What lies beyond waits for the next batch."""
    batch = batch_of([group_bytes(i) for i in range(5)], num_groups=3)
    assert batch.group_ids == (gid(0), gid(1), gid(2))
    assert (batch.begin_offset, batch.next_offset) == (10, 13)


def test_too_few_groups_are_no_batch() -> None:
    """Duplicates do not fill it."""
    assert not open_batch([group_bytes(0), group_bytes(0)], num_groups=2).is_complete


def test_groups_consumed_before_are_duplicates() -> None:
    """They are counted, not listed: their batch is an earlier one."""
    batch = batch_of([group_bytes(0), group_bytes(1), group_bytes(1), group_bytes(2)], num_groups=2, consumed={gid(0)})
    assert batch.group_ids == (gid(1), gid(2))
    assert (batch.num_duplicates, batch.excluded, batch.next_offset) == (2, {}, 14)


def test_stale_group_is_dropped_with_reason() -> None:
    """Bound 2: version 5 minus 2 is over it, minus 3 is not."""
    batch = batch_of([group_bytes(0, version=2), group_bytes(1, version=3)], num_groups=2, version=5)
    assert (batch.group_ids, batch.excluded) == ((gid(1),), {gid(0): "stale"})
    assert [group.summary.group_id for group in batch.untrained] == [gid(0)]


def test_group_of_a_version_that_is_not_there_yet_is_dropped() -> None:
    """A step that starts from version 5 can have no token of version 6: somebody made it up."""
    batch = batch_of([group_bytes(0, version=6), group_bytes(1, version=5)], num_groups=2, version=5)
    assert (batch.group_ids, batch.excluded) == ((gid(1),), {gid(0): "newer"})


def test_group_of_another_runs_versions_is_dropped_with_its_own_reason() -> None:
    """Their numbers cannot be compared with ours: neither stale, nor of a negative staleness."""
    foreign = [sampled_by(version, run=OTHER_RUN) for version in (0, 5, 9)]
    batch = batch_of(
        [*(group_bytes(i, version=foreign[i]) for i in range(3)), group_bytes(3, version=5)], num_groups=4, version=5
    )
    assert (batch.group_ids, batch.excluded) == ((gid(3),), dict.fromkeys(map(gid, range(3)), "other_run"))


def test_empty_group_counts_as_consumed_with_its_reason() -> None:
    """It was admitted, so it must leave the admission window."""
    empty = encode_group(summary(gid(7), ["r0"], excluded="all_members_excluded"), [])
    batch = batch_of([empty, group_bytes(1)], num_groups=2)
    assert batch.excluded == {gid(7): "all_members_excluded"}
    assert batch.consumed == (gid(7), gid(1))


def test_malformed_record_does_not_stop_the_partition() -> None:
    """Garbage is no group; a malformed group that names itself is one."""
    bad = encode_group(summary("bad", ["r0"]), [segment("r0", [turn(0, 3)])])
    batch = batch_of([b"garbage", bad, None, group_bytes(1)], num_groups=2)
    assert batch.group_ids == (gid(1),)
    assert batch.excluded == {"bad": "malformed"}
    assert [(verdict.record.offset, verdict.reason) for verdict in batch.dead] == [
        (10, "malformed"),
        (11, "malformed"),
        (12, "null_value"),
    ]


def test_hash_tells_bytes_order_and_exclusions() -> None:
    """Equal intervals at equal steps give equal hashes; anything else gives another."""
    values = [group_bytes(0, version=1), group_bytes(1, version=3)]
    hashes = [
        batch_of(values, num_groups=2, version=3).hash,
        batch_of(values[::-1], num_groups=2, version=3).hash,
        batch_of(values, num_groups=2, version=4).hash,
        batch_of([values[0], group_bytes(1, version=3, seed=1)], num_groups=2, version=3).hash,
    ]
    assert len(set(hashes)) == len(hashes)
    assert batch_of(values, num_groups=2, version=3).hash == hashes[0]


def test_the_hash_does_not_tell_what_came_twice() -> None:
    """A source whose worker was killed has its groups' records again, and trains the same."""
    values = [group_bytes(0), group_bytes(1), group_bytes(2)]
    once, twice = values[1:], [values[1], values[0], values[1], values[2]]
    batches = [batch_of(one, num_groups=2, consumed={gid(0)}) for one in (once, twice)]
    assert [batch.num_duplicates for batch in batches] == [0, 2]
    assert [batch.consumed for batch in batches] == [(gid(1), gid(2))] * 2
    assert batches[0].hash == batches[1].hash


def test_what_a_batch_consumes_is_in_the_order_of_its_records() -> None:
    """Trained or not: a dictionary of reasons has no order on the wire."""
    values = [group_bytes(0, version=3), group_bytes(1, version=0), group_bytes(2, version=3)]
    batch = batch_of(values, num_groups=3, version=3)
    assert (batch.group_ids, batch.excluded) == ((gid(0), gid(2)), {gid(1): "stale"})
    assert batch.consumed == batch.without(batch.group_ids, "no_advantage").consumed == (gid(0), gid(1), gid(2))


def test_the_hash_tells_what_selection_left_out() -> None:
    """As `excluded_ids` does, from which the audit makes it again."""
    values = [group_bytes(0), group_bytes(1, spread=0.0)]
    digests = [hashlib.sha256(value).digest() for value in values]
    for recipe, reason in ((Recipe(selection="spread"), "no_spread"), (Recipe(), "")):
        batch = open_batch(values, num_groups=2, recipe=recipe).close(run=RUN, version=0, max_staleness=2)
        assert batch.excluded == ({gid(1): reason} if reason else {})
        assert batch.hash == hash_batch(zip(digests, ["", reason], strict=True))


def test_accounting_is_in_distinct_groups() -> None:
    """consumed = trained + the sum of excluded."""
    bad = encode_group(summary("bad", ["r0"]), [segment("r0", [turn(0, 3)])])
    fresh = [group_bytes(index, version=9) for index in (0, 0, 2)]
    values = [*fresh[:2], bad, group_bytes(1), fresh[2]]
    before = Accounting(consumed=5, trained=4, excluded={"stale": 1}, duplicates=1)
    after = account(before, batch_of(values, num_groups=4, version=9))
    assert after == Accounting(consumed=9, trained=6, excluded={"stale": 2, "malformed": 1}, duplicates=2)
    assert after.consumed == after.trained + sum(after.excluded.values())


def test_offset_that_retention_took_is_fatal(memory_log: MemoryLog) -> None:
    """Records that the checkpoint counts on are gone; going on would skip groups in silence."""
    memory_log.create_topic("t", 1)
    append_groups(memory_log, "t", [group_bytes(i) for i in range(4)])
    memory_log.truncate("t", 0, begin=2)
    for offset in (1, 5):
        with pytest.raises(LogGapError):
            TransitionsReader(memory_log, TopicPartition("t", 0), next_offset=offset).next()


@pytest.mark.parametrize("offset", [9, 12])
def test_record_that_is_not_the_next_is_fatal(offset: int) -> None:
    """A batch is a contiguous interval: a record passed over, or seen again, is never trained around."""
    batch = open_batch([group_bytes(0)], num_groups=3)
    with pytest.raises(LogGapError, match="expected offset 11 of .*, got " + str(offset)):
        batch.add_record(record(group_bytes(1), offset))


def test_source_reads_in_order_and_tells_its_lag(memory_log: MemoryLog) -> None:
    """From the offset given."""
    memory_log.create_topic("t", 1)
    append_groups(memory_log, "t", [group_bytes(i) for i in range(4)])
    source = TransitionsReader(memory_log, TopicPartition("t", 0), next_offset=1)
    assert source.lag == 3
    first = source.next()
    assert first is not None
    assert (first.offset, source.lag) == (1, 2)
    assert [getattr(source.next(), "offset", None) for _ in range(3)] == [2, 3, None]
    source.close()
