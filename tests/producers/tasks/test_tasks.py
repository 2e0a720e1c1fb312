"""Admission on an in-memory log: the order of a run, its pace, restarts, and rollouts that nobody ends."""

from __future__ import annotations

import logging
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.versions import RUN, ack
from tracegrad.producers.rollout_histories import event_of
from tracegrad.producers.tasks.admission import TaskAdmission, run
from tracegrad.producers.tasks.config import PaceConfig, TasksConfig, TasksHandles
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.metrics import GROUPS_ADMITTED, Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import (
    ROLLOUT_EVENTS,
    ROLLOUTS,
    Limits,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting, TrainingStep
from tracegrad.schemas.records.weights import WEIGHT_ACKS
from tracegrad.schemas.topics import Topic, Topics

TOPICS = Topics(run=RunName("test"))


class World:
    """What runner, streams, trainer and weight sync would write."""

    def __init__(self, log: MemoryLog, folder: Path) -> None:
        log.create_topics(TOPICS, policies=["policy"])
        (folder / "train.jsonl").write_text("".join(f'{{"id":"{i}","input":{i},"expected":{i}}}\n' for i in range(3)))
        (folder / "eval.jsonl").write_text('{"id":"e0","input":0}\n{"id":"e1","input":1}\n')
        self.log = log
        self.writer = log.writer()
        file, eval_file = str(folder / "train.jsonl"), str(folder / "eval.jsonl")
        self.config = TasksConfig(file=file, eval_file=eval_file, group_size=2)
        self.pace = PaceConfig(staleness=1)
        self.handles = TasksHandles(
            engine_ids=("engine-0",),
            run_hash=RunHash("ab12cd34"),
            policy="policy",
            seed=0,
            steps=3,
            groups_per_step=2,
            concurrency=14,
            time_limit_s=Limits().time_s,
            rewards_awaited=("reward",),
            episode_wait_s=90.0,
        )
        self.start()
        self.num_consumed = 0
        self.step = 0

    def start(self) -> None:
        """A tasks process from the log's beginning."""
        self.metrics = Metrics()
        self.admission = TaskAdmission(
            self.config, self.pace, self.handles, topics=TOPICS, writer=self.log.writer(), metrics=self.metrics
        )
        self.chunks = follow(self.log, list(self.admission.codecs), poll_s=0.0)

    def turn(self) -> bool:
        """One round of the loop."""
        return self.admission.fold(next(self.chunks))

    def append(self, topic: Topic, key: str, value: bytes) -> None:
        """One record."""
        self.writer.append(TOPICS.name(topic), key=key.encode(), value=value).result(1)

    def ack(self, version: int) -> None:
        """An engine serves a version."""
        self.append(Topic.WEIGHT_ACKS, "engine-0", WEIGHT_ACKS.encode(ack(version)))

    def requests(self, purpose: Purpose) -> list[RolloutRequest]:
        """All requests of a purpose, by group and member."""
        found = [ROLLOUTS.decode(record.value) for record in self.log.records(TOPICS.name(Topic.ROLLOUTS))]
        chosen = [request for request in found if request.purpose is purpose]
        return sorted(chosen, key=lambda request: (request.group.index, request.group.member))

    def end(
        self,
        request: RolloutRequest,
        state: RolloutState = RolloutState.SUCCEEDED,
        *,
        reward: float | None = 1.0,
        episode: bool = True,
        calls: tuple[EpisodeCall, ...] = (),
    ) -> None:
        """The rollout's final event and episode."""
        fields: dict[str, Any] = {
            "rollout_id": request.rollout_id,
            "attempt_id": "aaaa",
            "attempt_number": 0,
            "state": state,
            "is_final": True,
            "group": request.group,
            "task_id": request.task_id,
            "policy": request.policy,
            "purpose": request.purpose,
        }
        self.append(Topic.ROLLOUT_EVENTS, request.rollout_id, ROLLOUT_EVENTS.encode(RolloutEvent(**fields)))
        record = Episode(
            episode_id=request.rollout_id + "aaaa", closed_by="complete", calls=calls, reward=reward,
            unscored="" if reward is not None else "grader raised KeyError", **fields,
        )  # fmt: skip
        if episode:
            self.append(Topic.EPISODES, request.group.id, EPISODES.encode(record))

    def train(self) -> None:
        """The next batch."""
        self.step += 1
        self.num_consumed += self.handles.groups_per_step
        step = TrainingStep(
            run=RUN, policy="policy", step=self.step, epoch=1, version=self.step, is_updated=True, begin_offset=0,
            next_offset=0, batch_hash="", group_ids=(), accounting=Accounting(consumed=self.num_consumed), loss=0.0,
            grad_norm=0.0, learning_rate=0.0, reward=None, num_rollouts=0, num_tokens=0,
            excluded_ids={"g": "all_members_excluded"},
        )  # fmt: skip
        self.append(Topic.TRAINING_STEPS, "policy", TRAINING_STEPS.encode(step))


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path) -> World:
    """A run of three steps of two groups of two, with two held-out tasks."""
    return World(memory_log, tmp_path)


def validated(world: World, first: int = 0) -> None:
    """Plays a validation pass."""
    world.turn()
    for request in world.requests(Purpose.VALIDATION)[first:]:
        world.end(request)
    world.turn()


def test_a_run_validates_trains_and_validates_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Version 0 served, validation, paced groups, last version served, validation, done."""
    caplog.set_level(logging.INFO)
    assert not world.turn()
    assert world.requests(Purpose.VALIDATION) == []
    world.ack(0)
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
    world.ack(0)
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
    world.ack(0)
    validated(world)
    first, second = world.requests(Purpose.TRAIN)[:2]
    assert (first.task_id, first.expected) == (second.task_id, second.expected)
    assert first.rollout_id != second.rollout_id
    assert first.rollout_id.startswith("ab12cd34")
    assert first.group.id == second.group.id


def test_a_restart_goes_on_where_the_log_ends(world: World) -> None:
    """No rollout twice, a half-admitted group completed, validation not repeated."""
    world.ack(0)
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
    world.ack(0)
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
    world.ack(0)
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
    world.ack(0)
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
    world.ack(0)
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
    world.ack(0)
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
    world.ack(0)
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
