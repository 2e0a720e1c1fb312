"""What rollout events say."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from tests.streams import make
from tracegrad.producers.rollout_histories import Histories, Members
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import (
    MAX_GATEWAYS,
    GroupRef,
    Limits,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)

ROLLOUT = "ab12cd34" + "0" * 20
REQUEST = RolloutRequest(
    rollout_id=ROLLOUT,
    group=GroupRef(id="g", size=1, member=0, index=0),
    task_id="t",
    input="",
    policy="policy",
    purpose=Purpose.TRAIN,
)


def event(attempt: str, number: int, state: RolloutState, **fields: Any) -> RolloutEvent:
    """An event of the test's rollout."""
    told = {"attempt_id": attempt, "attempt_number": number, "is_final": False, "group": REQUEST.group}
    return make.event(fields.pop("rollout_id", ROLLOUT), state, **told | fields)


def test_the_first_to_start_a_number_owns_it() -> None:
    """A later `started` of the same number changes nothing."""
    histories = Histories("ab12cd34")
    for attempt in ("aaaa", "bbbb"):
        histories.fold(event(attempt, 0, RolloutState.STARTED))
    assert histories.of(REQUEST).owners == {0: "aaaa"}
    assert histories.of(REQUEST).open_attempts == ((0, "aaaa"), (0, "bbbb"))


def test_an_aborted_attempt_leaves_room_for_the_next_one() -> None:
    """Open, ended, next; the first end counts; final stays final."""
    histories = Histories("ab12cd34")
    histories.fold(event("aaaa", 0, RolloutState.STARTED))
    histories.fold(event("aaaa", 0, RolloutState.ABORTED, error="engine"))
    history = histories.of(REQUEST)
    assert (history.open_attempts, history.next_number, history.is_final, history.error) == ((), 1, False, "engine")
    histories.fold(event("aaaa", 0, RolloutState.SUCCEEDED, is_final=True))
    assert not histories.of(REQUEST).is_final
    histories.fold(event("bbbb", 1, RolloutState.STARTED))
    histories.fold(event("bbbb", 1, RolloutState.SUCCEEDED, is_final=True))
    assert histories.of(REQUEST).is_final
    histories.fold(event("bbbb", 1, RolloutState.ABORTED))
    assert histories.of(REQUEST).is_final


def test_attempts_that_the_gateways_end_aborted_do_not_count() -> None:
    """Within a bound of their own: what kills a gateway each time is not asked of it for ever."""
    histories, limits = Histories("ab12cd34"), Limits(max_attempts=2)
    for number in range(MAX_GATEWAYS + 5):
        history = histories.of(REQUEST)
        assert history.max_attempts(limits) == 2 + min(number, MAX_GATEWAYS)
        assert history.max_attempts(limits, is_replaced=True) == 2 + min(number + 1, MAX_GATEWAYS)
        histories.fold(event(f"{number:04x}", number, RolloutState.STARTED))
        for _ in range(2):
            histories.fold(event(f"{number:04x}", number, RolloutState.ABORTED, gateway_replaced=True))


def test_a_run_of_many_rollouts_keeps_the_open_ones_only() -> None:
    """Of the rest just that they are final: their requests may come again, and must not run again."""
    histories = Histories("ab12cd34")
    requests = [
        msgspec.structs.replace(
            REQUEST,
            rollout_id=f"ab12cd34{4 * index + member:020x}",
            group=GroupRef(id=f"g{index}", size=4, member=member, index=index),
        )
        for index in range(500)
        for member in range(4)
    ]
    for request in requests:
        fields: dict[str, Any] = {"rollout_id": request.rollout_id, "group": request.group}
        histories.fold(event("aaaa", 0, RolloutState.STARTED, **fields))
        if request is not requests[-1]:
            histories.fold(event("aaaa", 0, RolloutState.SUCCEEDED, is_final=True, **fields))
    assert len(histories._rollouts) == 1
    assert histories.of(requests[-1]).open_attempts == ((0, "aaaa"),)
    assert all(histories.of(request).is_final for request in requests[:-1])


def test_an_attempt_that_starts_after_the_final_event_owns_nothing() -> None:
    """A runner whose partition was taken over is late: it must not run the attempt, but end it."""
    histories = Histories("ab12cd34")
    histories.fold(event("0000", 0, RolloutState.GIVEN_UP, is_final=True))
    histories.fold(event("aaaa", 0, RolloutState.STARTED))
    history = histories.of(REQUEST)
    assert (history.is_final, history.owners, history.open_attempts) == (True, {}, ((0, "aaaa"),))
    histories.fold(event("aaaa", 0, RolloutState.ABORTED))
    assert (histories.of(REQUEST).is_final, histories.of(REQUEST).open_attempts, len(histories._rollouts)) == (
        True,
        (),
        0,
    )


def test_members_remember_every_group_and_keep_few() -> None:
    """Out of order, twice, with groups of different sizes; what lies below the first incomplete one takes no memory."""
    members = Members()
    places = [
        GroupRef(id="", size=1 + index % 3, member=member, index=index)
        for index in range(60)
        for member in range(1 + index % 3)
    ]
    random.Random(1).shuffle(places)
    for number, place in enumerate(places):
        assert place not in members
        assert members.add_member(place) and not members.add_member(place)
        assert all((other in members) == (where <= number) for where, other in enumerate(places))
        assert members.num_groups == len({other.index for other in places[: number + 1]})
    assert (len(members._later), members.incomplete(), members.missing(7, 2), members.missing(60, 2)) == (
        0,
        [],
        [],
        [0, 1],
    )
    members.add_member(GroupRef(id="", size=3, member=1, index=61))
    assert (len(members._later), members.incomplete(), members.missing(61, 3)) == (1, [61], [0, 2])
    assert GroupRef(id="", size=1, member=0, index=-1) not in members


def test_other_runs_are_left_out() -> None:
    """rollout_events is shared by all runs."""
    histories = Histories("ab12cd34")
    assert not histories.fold(event("aaaa", 0, RolloutState.STARTED, rollout_id="99999999" + "0" * 20))
