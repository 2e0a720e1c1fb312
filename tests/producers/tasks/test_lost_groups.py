"""Groups that are lost on their way: no run hangs for them, and each is accounted for."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.producers.tasks.test_tasks import TOPICS, World
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessReport
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, RolloutRequest, RolloutState
from tracegrad.schemas.topics import Topic

STEPS, GROUPS_PER_STEP, GROUP_SIZE = 6, 8, 2
KINDS = ("one episode", "all episodes", "no event", "cannot close")


class LossyWorld:
    """A run whose clock is ours: a round takes 10 s. Groups below `num_lost` lose something, the others nothing."""

    def __init__(self, world: World, num_lost: int, seed: int) -> None:
        self.world = world
        world.config = msgspec.structs.replace(world.config, eval_file=None, group_size=GROUP_SIZE)
        world.pace = msgspec.structs.replace(world.pace, staleness=2)
        world.handles = msgspec.structs.replace(
            world.handles, steps=STEPS, groups_per_step=GROUPS_PER_STEP, concurrency=64
        )
        world.start()
        rng = random.Random(seed)
        numbers = rng.sample(range(STEPS * GROUPS_PER_STEP), num_lost) if seed % 2 else range(num_lost)
        self.kinds = {number: rng.choice(KINDS) for number in numbers}
        self.heard: set[str] = set()
        self.members: dict[int, set[int]] = {}
        self.given_up_once: set[str] = set()

    def run(self, now: list[float], *, num_rounds: int = 700) -> bool:
        """Whether the run is complete after so many rounds."""
        for _ in range(num_rounds):
            self.world.ack(self.world.step)
            if self.world.turn():
                return True
            for request in self.world.requests(Purpose.TRAIN):
                if request.rollout_id not in self.heard:
                    self.heard.add(request.rollout_id)
                    self.end(request)
            self.give_up()
            while self.num_closed - self.world.num_consumed >= GROUPS_PER_STEP and self.world.step < STEPS:
                self.world.train()
            now[0] += 10.0
        return False

    def end(self, request: RolloutRequest) -> None:
        """What runner and assemble make of a rollout, as far as it is not lost."""
        kind, member = self.kinds.get(request.group.index), request.group.member
        if kind == "no event" and member == 0:
            return
        has_episode = kind is None or (kind != "all episodes" and member > 0)
        self.world.end(request, episode=has_episode)
        if has_episode:
            self.members.setdefault(request.group.index, set()).add(member)

    def give_up(self) -> None:
        """What assemble makes of the events that tasks wrote."""
        records = self.world.log.records(TOPICS.name(Topic.ROLLOUT_EVENTS))
        for event in (ROLLOUT_EVENTS.decode(record.value) for record in records):
            if event.attempt_id != GIVEN_UP_ATTEMPT or event.rollout_id in self.given_up_once:
                continue
            if self.kinds[event.group.index] != "cannot close":
                self.given_up_once.add(event.rollout_id)
                assert (event.state, event.is_final) == (RolloutState.GIVEN_UP, True)
                episode = Episode(
                    episode_id=event.rollout_id + GIVEN_UP_ATTEMPT, rollout_id=event.rollout_id,
                    attempt_id=event.attempt_id, group=event.group, task_id=event.task_id, policy=event.policy,
                    purpose=event.purpose, state=event.state, is_final=True, closed_by="complete", calls=(),
                    reward=None,
                )  # fmt: skip
                self.world.append(Topic.EPISODES, event.group.id, EPISODES.encode(episode))
                self.members.setdefault(event.group.index, set()).add(event.group.member)

    @property
    def num_closed(self) -> int:
        """Groups that credit would have written."""
        return sum(len(members) == GROUP_SIZE for members in self.members.values())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, to be advanced."""
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path) -> World:
    """As the tests of admission have it."""
    return World(memory_log, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_lost", [1, 8, 24])
def test_lost_groups_hang_no_run_and_are_accounted_for(
    world: World, now: list[float], num_lost: int, seed: int
) -> None:
    """All steps are made; each admitted group was consumed or is told as lost, and no other is lost."""
    lossy = LossyWorld(world, num_lost, seed)
    assert lossy.run(now), f"step {world.step} of {STEPS}, lost {Counter(lossy.kinds.values())}"
    state = world.admission.state
    assert state.lost_groups == {number for number, kind in lossy.kinds.items() if kind == "cannot close"}
    assert world.num_consumed + len(state.lost_groups) == state.progress().admitted
    assert lossy.num_closed == world.num_consumed


def test_no_rollout_is_given_up_while_the_streams_lag(world: World, now: list[float]) -> None:
    """Its episode may be among what they have not read: the wait begins anew with each report of a lag."""
    lossy = LossyWorld(world, 1, 0)
    lossy.kinds = {0: "all episodes"}
    given_up = []
    for _ in range(30):
        report = ProcessReport(process="streams-credit-0", pid=1, since_ms=0, at_ms=0, counters={"lag": 3.0})
        world.append(Topic.PROCESS_STATUS, "streams-credit-0", PROCESS_STATUS.encode(report))
        lossy.run(now, num_rounds=1)
        given_up.append(len(lossy.members.get(0, ())))
    assert given_up[-1] == 0
    lossy.run(now, num_rounds=20)
    assert lossy.members.get(0) == {0, 1}
