"""Admission beside a trainer that has its batches refilled: no number of groups without spread hangs a run."""

from __future__ import annotations

import msgspec
import pytest

from tests.producers.tasks.world import TOPICS, World
from tests.versions import RUN
from tracegrad.producers.tasks.config import PaceConfig
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting, GroupsGivenBack, TrainingStep
from tracegrad.schemas.topics import Topic

G = 8
MANY = 300
"""Rounds that no run here needs."""


class RefillingTrainer:
    """What a trainer writes that finds no spread in the first groups of its second batch."""

    def __init__(self, world: World, num_useless: int, *, is_telling: bool = True) -> None:
        self.world = world
        self.is_telling = is_telling
        self.useless = range(G, G + num_useless)
        self.step = self.num_taken = self.num_consumed = 0
        self.epoch = 1
        self.batch: list[int] = []

    def look(self, num_closed: int) -> None:
        """Takes what has closed, a step at most; else says what it gives back."""
        while self.num_taken < num_closed:
            self.batch.append(self.num_taken)
            self.num_taken += 1
            if sum(index not in self.useless for index in self.batch) == G:
                return self.conclude()
        if self.is_telling and (given_back := [str(index) for index in self.batch if index in self.useless]):
            self.say(given_back)
        return None

    def say(self, given_back: list[str]) -> None:
        """The word on the batch that is read."""
        word = GroupsGivenBack(
            run=RUN,
            policy="policy",
            epoch=self.epoch,
            step=self.step + 1,
            consumed=self.num_consumed + len(given_back),
            group_ids=tuple(given_back),
        )
        self.world.append(Topic.TRAINING_STEPS, "policy", TRAINING_STEPS.encode(word))

    def conclude(self) -> None:
        """The batch is trained."""
        self.step += 1
        self.num_consumed += len(self.batch)
        self.batch = []
        step = TrainingStep(
            run=RUN, policy="policy", step=self.step, epoch=self.epoch, version=self.step, is_updated=True,
            begin_offset=0, next_offset=0, batch_hash="", group_ids=(), loss=0.0, grad_norm=0.0, learning_rate=0.0,
            accounting=Accounting(consumed=self.num_consumed), reward=None, num_rollouts=0, num_tokens=0,
        )  # fmt: skip
        self.world.append(Topic.TRAINING_STEPS, "policy", TRAINING_STEPS.encode(step))
        self.world.ack(self.step)

    def restart(self) -> None:
        """Killed: reads its batch again, under the next epoch."""
        self.epoch += 1
        self.num_taken -= len(self.batch)
        self.batch = []


@pytest.fixture
def world(world: World) -> World:
    """Three batches of eight groups of two; nothing held out."""
    world.config = msgspec.structs.replace(world.config, eval_file=None)
    world.handles = msgspec.structs.replace(world.handles, groups_per_step=G, concurrency=1000)
    return world


def rounds(world: World, trainer: RefillingTrainer, *, restart_every: int = MANY) -> int:
    """How many until the last batch; MANY: it hangs."""
    world.start()
    world.ack(0)
    ended = 0
    for number in range(1, MANY):
        world.turn()
        requests = world.requests(Purpose.TRAIN)
        for request in requests[ended:]:
            world.end(request)
        ended = len(requests)
        trainer.look(ended // 2)
        if trainer.step == world.handles.steps:
            return number
        if number % restart_every == 0:
            trainer.restart()
            world.start()
    return MANY


@pytest.mark.parametrize("eta", [0, 2])
@pytest.mark.parametrize("num_useless", [1, G, 3 * G])
def test_groups_without_spread_hang_no_run(world: World, eta: int, num_useless: int) -> None:
    """Others are admitted in their stead while the batch is read, as many as it takes and no more."""
    world.pace = PaceConfig(staleness=eta)
    assert rounds(world, RefillingTrainer(world, num_useless)) < MANY
    assert len(world.requests(Purpose.TRAIN)) == 2 * (3 * G + num_useless)


@pytest.mark.parametrize(("eta", "num_useless"), [(0, 1), (0, G), (2, 3 * G)])
def test_without_the_word_the_run_would_hang(world: World, eta: int, num_useless: int) -> None:
    """What the record is for."""
    world.pace = PaceConfig(staleness=eta)
    assert rounds(world, RefillingTrainer(world, num_useless, is_telling=False)) == MANY


@pytest.mark.parametrize("every", [1, 2, 3])
def test_restarts_of_both_admit_no_group_twice(world: World, every: int) -> None:
    """What was said under an earlier epoch is said again, or is concluded."""
    world.pace = PaceConfig(staleness=0)
    assert rounds(world, RefillingTrainer(world, 3 * G), restart_every=every) < MANY
    requests = world.requests(Purpose.TRAIN)
    assert len({request.rollout_id for request in requests}) == len(requests) == 2 * 6 * G


def test_words_that_come_again_or_late_change_nothing(world: World) -> None:
    """A copy of an earlier word, which verifies; and one on a batch that is concluded."""
    world.start()
    trainer = RefillingTrainer(world, 0)
    state = world.admission.state
    for words, expected in (((["a"], ["a", "b"], ["a"]), (0, 2)), ((["a", "b", "c"],), (0, 3))):
        for word in words:
            trainer.say(word)
        world.turn()
        assert (state.progress().step, state.progress().consumed) == expected
    trainer.batch = list(range(11))
    trainer.conclude()
    copies = world.log.records(TOPICS.name(Topic.TRAINING_STEPS))[:3]
    for copy in copies:
        world.append(Topic.TRAINING_STEPS, "policy", copy.value or b"")
    world.turn()
    assert (state.progress().step, state.progress().consumed) == (1, 11)
