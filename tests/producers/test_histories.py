"""What rollout events say, and what may be committed."""

from __future__ import annotations

from typing import Any

from tracegrad.producers.histories import Histories
from tracegrad.producers.offset_ledger import OffsetLedger
from tracegrad.schemas.calls import Purpose
from tracegrad.schemas.log import Position, TopicPartition
from tracegrad.schemas.rollouts import GroupRef, RolloutEvent, RolloutState

ROLLOUT = "ab12cd34" + "0" * 20
WHERE = TopicPartition("rollouts", 0)


def event(attempt: str, number: int, state: RolloutState, **fields: Any) -> RolloutEvent:
    """An event of the test's rollout."""
    return RolloutEvent(
        rollout_id=fields.pop("rollout_id", ROLLOUT),
        attempt_id=attempt,
        attempt_number=number,
        state=state,
        group=GroupRef(id="g", size=1, member=0, index=0),
        task_id="t",
        policy="policy",
        purpose=Purpose.TRAIN,
        **fields,
    )


def test_the_first_to_start_a_number_owns_it() -> None:
    """A later `started` of the same number changes nothing."""
    histories = Histories("ab12cd34")
    for attempt in ("aaaa", "bbbb"):
        histories.fold(event(attempt, 0, RolloutState.STARTED))
    assert histories.of(ROLLOUT).owners == {0: "aaaa"}
    assert histories.of(ROLLOUT).open_attempts == ((0, "aaaa"), (0, "bbbb"))


def test_an_aborted_attempt_leaves_room_for_the_next_one() -> None:
    """Open, ended, next; the first end counts; final stays final."""
    histories = Histories("ab12cd34")
    histories.fold(event("aaaa", 0, RolloutState.STARTED))
    histories.fold(event("aaaa", 0, RolloutState.ABORTED, error="engine"))
    history = histories.of(ROLLOUT)
    assert (history.open_attempts, history.next_number, history.final, history.error) == ((), 1, None, "engine")
    histories.fold(event("bbbb", 1, RolloutState.STARTED))
    histories.fold(event("bbbb", 1, RolloutState.SUCCEEDED, is_final=True))
    histories.fold(event("bbbb", 1, RolloutState.ABORTED))
    histories.fold(event("0000", 2, RolloutState.GIVEN_UP, is_final=True))
    assert history.final is RolloutState.SUCCEEDED
    assert history.ended["bbbb"] is RolloutState.SUCCEEDED


def test_other_runs_are_left_out() -> None:
    """rollout_events is shared by all runs."""
    histories = Histories("ab12cd34")
    assert not histories.fold(event("aaaa", 0, RolloutState.STARTED, rollout_id="99999999" + "0" * 20))


def at(offset: int) -> Position:
    """A position of the test's partition."""
    return Position(*WHERE, offset)


def test_commits_stop_at_the_first_open_record() -> None:
    """The low-water mark."""
    ledger = OffsetLedger()
    for offset in (3, 4, 5):
        ledger.deliver(at(offset))
    ledger.done(at(4))
    assert ledger.due() == {WHERE: 3}
    ledger.done(at(3))
    assert ledger.due() == {WHERE: 5}
    ledger.confirm({WHERE: 5})
    assert ledger.due() == {}
    ledger.done(at(5))
    assert (ledger.due(), ledger.num_open) == ({WHERE: 6}, 0)


def test_a_partition_that_was_away_begins_anew() -> None:
    """Neither its old open records nor its old place may decide what is committed."""
    ledger = OffsetLedger()
    ledger.deliver(at(7))
    ledger.reconcile({})
    assert ledger.due() == {}
    ledger.done(at(7))
    ledger.deliver(at(4))
    assert ledger.due() == {WHERE: 4}
    ledger.reconcile({WHERE: 4})  # set back while nothing was read
    assert ledger.due() == {}
    ledger.deliver(at(5))
    ledger.deliver(at(4))  # comes again after a rebalance within one read
    ledger.done(at(4))
    assert ledger.due() == {WHERE: 5}
