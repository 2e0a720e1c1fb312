"""Admission on an in-memory log: the order of a run, its pace, restarts, and rollouts that nobody ends."""

from __future__ import annotations

import logging
import threading
import time
from itertools import product

import msgspec
import pytest

from tests.producers.tasks.world import TOPICS, World, validated
from tests.streams.credit.test_credit import turns
from tracegrad.producers.rollout_histories import event_of
from tracegrad.producers.tasks.admission import run
from tracegrad.producers.tasks.config import TasksConfig
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.metrics import ALARMS_BEGUN, GROUPS_ADMITTED, Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import (
    ROLLOUT_EVENTS,
    ROLLOUTS,
    RolloutState,
)
from tracegrad.schemas.topics import Topic


def test_a_run_validates_trains_and_validates_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Version 0 served, validation, paced groups, last version served, validation, done."""
    caplog.set_level(logging.INFO)
    assert not world.turn()
    assert world.requests(Purpose.VALIDATION) == []
    validated(world)
    assert [request.group.size for request in world.requests(Purpose.VALIDATION)] == [1, 1]
    for step in range(1, 4):
        world.turn()
        for request in world.requests(Purpose.TRAIN)[4 * (step - 1) : 4 * step]:
            world.end(request)
        world.train()
        if step < 3:
            world.ack(step)
    assert not world.turn()
    assert len(world.requests(Purpose.VALIDATION)) == 2
    world.ack(3)
    assert not world.turn()
    assert [request.group.index for request in world.requests(Purpose.VALIDATION)] == [0, 1, 2, 3]
    for request in world.requests(Purpose.VALIDATION)[2:]:
        world.end(request, reward=0.5)
    assert world.turn()
    assert len(world.requests(Purpose.TRAIN)) == 3 * 2 * 2
    assert [world.metrics.value(GROUPS_ADMITTED, purpose) for purpose in ("train", "validation")] == [6, 4]
    assert "held-out pass 0, step 0: mean reward 1.0000 over 2 tasks" in caplog.text
    assert "held-out pass 1, step 3: mean reward 0.5000 over 2 tasks" in caplog.text
    assert "step 1: 1 groups excluded: all_members_excluded 1" in caplog.text


@pytest.mark.parametrize(("max_running", "expected"), [(None, 3), (1, 1)])
def test_as_many_groups_run_as_the_agent_has_places_for_and_one_more(
    world: World, max_running: int | None, expected: int
) -> None:
    """Unless the settings say how many."""
    world.config = msgspec.structs.replace(world.config, max_running=max_running)
    world.handles = msgspec.structs.replace(world.handles, concurrency=3)
    world.start()
    world.ack(0)
    for _ in range(3):
        validated(world)
    assert len(world.requests(Purpose.TRAIN)) == expected * 2


def test_a_copy_of_an_older_acknowledgement_is_no_news(world: World) -> None:
    """It verifies, and the run would wait for ever for a version that was served."""
    for version in (0, 3, 1):
        world.ack(version)
    world.turn()
    assert world.admission.state.progress().acked == 3


def test_admission_stops_at_the_bound_of_staleness(world: World) -> None:
    """With eta 1 two batches are admitted; the third needs a batch consumed and its version served."""
    validated(world)
    world.turn()
    assert len(world.requests(Purpose.TRAIN)) == 2 * 2 * 2
    for request in world.requests(Purpose.TRAIN):
        world.end(request)
    world.turn()
    assert len(world.requests(Purpose.TRAIN)) == 8
    world.train()
    world.turn()
    assert len(world.requests(Purpose.TRAIN)) == 12


def test_members_of_a_group_share_task_and_differ_in_id(world: World) -> None:
    """k requests of one task, `expected` for the grader, ids that follow from run, purpose and number."""
    validated(world)
    first, second = world.requests(Purpose.TRAIN)[:2]
    assert (first.task_id, first.expected) == (second.task_id, second.expected)
    assert first.rollout_id != second.rollout_id
    assert first.rollout_id.startswith("ab12cd34")
    assert first.group.id == second.group.id


def test_a_restart_goes_on_where_the_log_ends(world: World) -> None:
    """No rollout twice, a half-admitted group completed, validation not repeated."""
    validated(world)
    before = [request.rollout_id for request in world.requests(Purpose.TRAIN)]
    topic = world.log._partitions(TOPICS.name(Topic.ROLLOUTS))
    lost = next(part for part in topic if part.records and b'"train"' in (part.records[-1].value or b"")).records.pop()
    world.start()
    for _ in range(3):
        world.turn()
    after = [request.rollout_id for request in world.requests(Purpose.TRAIN)]
    assert sorted(after) == sorted(before)
    assert ROLLOUTS.decode(lost.value).rollout_id in after
    assert len(world.requests(Purpose.VALIDATION)) == 2


def test_a_log_that_is_away_delays_admission(world: World) -> None:
    """The member that was not acknowledged is asked for again, the others are not."""
    validated(world)
    for request in world.requests(Purpose.TRAIN):
        world.end(request)
    world.train()
    world.ack(1)
    world.log.fail_next(UnavailableError("away"))
    world.turn()
    world.turn()
    ids = {request.rollout_id for request in world.requests(Purpose.TRAIN)}
    assert len(ids) == 12
    assert world.metrics.value(GROUPS_ADMITTED, "train") == 6


def test_groups_that_cannot_train_keep_the_loop_admitting(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """All aborted, unscored: each is said with its reason, and the next groups are admitted."""
    validated(world)
    requests = world.requests(Purpose.TRAIN)
    world.end(requests[0], RolloutState.ABORTED, reward=None)
    world.end(requests[1], RolloutState.ABORTED, reward=None)
    for request in requests[2:]:
        world.end(request, RolloutState.FAILED, reward=None)
    world.train()
    world.ack(1)
    world.turn()
    assert "group 0: 2 of 2 rollouts excluded: aborted 2" in caplog.text
    assert "group 1: 2 of 2 rollouts excluded: no_calls 2" in caplog.text
    assert world.admission.state.exclusions == {"aborted": 2, "no_calls": 6}
    assert len(world.requests(Purpose.TRAIN)) == 12


def test_a_rollout_of_which_nothing_is_heard_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A final record in its runner's stead, once, so that its group closes."""
    validated(world)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3000.0)
    world.turn()
    world.turn()
    events = [ROLLOUT_EVENTS.decode(r.value) for r in world.log.records(TOPICS.name(Topic.ROLLOUT_EVENTS))]
    given_up = [event for event in events if event.state is RolloutState.GIVEN_UP]
    assert len(given_up) == 8
    assert all(event.is_final and event.attempt_id == "0000" for event in given_up)
    assert "nothing was heard of it" in caplog.text


def test_a_copy_of_what_was_said_is_no_sign_of_life(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that died after its start is given up in the end, however often somebody appends that start again."""
    validated(world)
    request = world.requests(Purpose.TRAIN)[0]
    started = ROLLOUT_EVENTS.encode(event_of(request, "0a0b", 0, RolloutState.STARTED))
    now = time.monotonic()
    for minutes in range(0, 120, 10):
        monkeypatch.setattr(time, "monotonic", lambda then=now + 60 * minutes: then)
        world.append(Topic.ROLLOUT_EVENTS, request.rollout_id, started)
        world.turn()
    assert request.rollout_id not in world.admission.state.open


def test_used_up_attempts_are_given_up_in_the_runners_stead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that died after the last abort, before it could say so; none by the gateway's end is the last."""
    world.config = msgspec.structs.replace(world.config, max_attempts=1)
    world.start()
    validated(world)
    request, again, *_ = world.requests(Purpose.TRAIN)
    for asked, state in product((request, again), (RolloutState.STARTED, RolloutState.ABORTED)):
        event = event_of(asked, "aaaa", 0, state, error="engine")
        event = msgspec.structs.replace(event, gateway_replaced=asked is again and state.is_end)
        world.append(Topic.ROLLOUT_EVENTS, asked.rollout_id, ROLLOUT_EVENTS.encode(event))
    world.turn()
    assert {request.rollout_id, again.rollout_id} <= world.admission.state.open.keys()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100.0)
    world.turn()
    assert request.rollout_id not in world.admission.state.open and again.rollout_id in world.admission.state.open
    last = ROLLOUT_EVENTS.decode(world.log.records(TOPICS.name(Topic.ROLLOUT_EVENTS))[-1].value)
    assert (last.state, last.is_final, last.rollout_id) == (RolloutState.GIVEN_UP, True, request.rollout_id)
    assert last.error == "1 attempts were aborted, the last one: engine"


def test_malformed_records_are_left_out(world: World) -> None:
    """A poison record on any topic stops nothing."""
    for topic in (Topic.EPISODES, Topic.TRAINING_STEPS, Topic.WEIGHT_ACKS, Topic.ROLLOUT_EVENTS):
        world.append(topic, "x", b"\xff")
    validated(world)
    assert world.requests(Purpose.TRAIN)


def test_run_ends_by_itself_or_when_stopped(world: World) -> None:
    """A stop event that is set ends it at once; a dataset that cannot be read is fatal."""
    stop = threading.Event()
    stop.set()
    run(world.config, world.pace, world.handles, topics=TOPICS, log=world.log, stop=stop, metrics=Metrics())
    with pytest.raises(ConfigurationError, match="cannot be read"):
        config = TasksConfig(file="none")
        run(config, world.pace, world.handles, topics=TOPICS, log=world.log, stop=stop, metrics=Metrics())


def test_three_steps_of_groups_that_cannot_train_are_an_alarm_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Before a step says so; again only when some group could train in between."""
    validated(world)
    calls = (msgspec.structs.replace(turns(0.0)[0], masked="constrained"),)
    told = []
    for number in (1, 2, 3, 4):
        for request in world.requests(Purpose.TRAIN)[4 * (number - 1) : 4 * number]:
            world.end(request, calls=calls)
        world.train()
        world.ack(number)
        world.turn()
        told.append((caplog.text.count("alarm nothing_trains"), world.metrics.value(ALARMS_BEGUN, "nothing_trains")))
    assert told == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert "none of the last 6 closed groups can train: 100% of groups `no_tokens`, 100% of their masked calls" in (
        caplog.text
    )
