"""Groups that are lost on their way: no run hangs for them, and each is accounted for.

HYPOTHESIS_PROFILE=long loses groups in 20 ways each.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Collection

import msgspec
import pytest

from tests.producers.tasks.world import TOPICS, World
from tracegrad.producers.tasks.stream_delay import StreamDelay
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessReport
from tracegrad.schemas.records.rollouts import MAX_GIVEN_UP, ROLLOUT_EVENTS, RolloutRequest, RolloutState
from tracegrad.schemas.topics import Topic

STEPS, GROUPS_PER_STEP, GROUP_SIZE = 6, 8, 2
KINDS = ("one episode", "all episodes", "no event", "cannot close", "no group named")
SEEDS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 3


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
        self.trainer_waits = True
        """Told of as having read all that there is."""
        self.heard: set[str] = set()
        self.members: dict[int, set[int]] = {}
        self.given_up_once: set[str] = set()

    def run(
        self, now: list[float], *, num_rounds: int = 700, restarts: Collection[int] = (), copies: Collection[Topic] = ()
    ) -> bool:
        """Whether the run is complete after so many rounds; before some of them tasks begins anew. Of `copies` somebody
        appends in each round the last record of each key once more, and the first of all."""
        for number in range(num_rounds):
            if number in restarts:
                self.world.start()
            for topic in copies:
                self.copy(topic)
            self.world.ack(self.world.step)
            if self.world.turn():
                return True
            for request in self.world.requests(Purpose.TRAIN):
                if request.rollout_id not in self.heard:
                    self.heard.add(request.rollout_id)
                    self.end(request)
            self.answer()
            while self.num_closed - self.world.num_consumed >= GROUPS_PER_STEP and self.world.step < STEPS:
                self.world.train()
            report(self.world, "trainer", {"groups_taken": self.num_closed} if self.trainer_waits else {})
            now[0] += 10.0
        return False

    def end(self, request: RolloutRequest) -> None:
        """What runner and assemble make of a rollout, as far as it is not lost."""
        kind, member = self.kinds.get(request.group.index), request.group.member
        if kind == "no event" and member == 0:
            return
        has_episode = kind in (None, "no group named") or (kind != "all episodes" and member > 0)
        self.world.end(request, episode=has_episode)
        if has_episode:
            self.members.setdefault(request.group.index, set()).add(member)

    def answer(self) -> None:
        """What assemble makes of the events that tasks wrote."""
        records = self.world.log.records(TOPICS.name(Topic.ROLLOUT_EVENTS))
        for event in (ROLLOUT_EVENTS.decode(record.value) for record in records):
            if event.state is not RolloutState.GIVEN_UP or event.rollout_id in self.given_up_once:
                continue
            if self.kinds[event.group.index] != "cannot close":
                self.given_up_once.add(event.rollout_id)
                assert (event.attempt_id, event.is_final) == (GIVEN_UP_ATTEMPT, True)
                episode = Episode(
                    episode_id=event.rollout_id + GIVEN_UP_ATTEMPT, rollout_id=event.rollout_id,
                    attempt_id=event.attempt_id, group=event.group, task_id=event.task_id, policy=event.policy,
                    purpose=event.purpose, state=event.state, is_final=True, closed_by="complete", calls=(),
                    reward=None,
                )  # fmt: skip
                self.world.append(Topic.EPISODES, event.group.id, EPISODES.encode(episode))
                self.members.setdefault(event.group.index, set()).add(event.group.member)

    def copy(self, topic: Topic) -> None:
        """What a writer without the run's key can do to a signed topic."""
        records = self.world.log.records(TOPICS.name(topic))
        newest = {record.key: record for record in records}
        for record in [*records[:1], *newest.values()]:
            self.world.append(topic, (record.key or b"").decode(), record.value or b"")

    def given_up(self) -> dict[str, set[str]]:
        """Rollout -> the attempts as which it was given up."""
        found: dict[str, set[str]] = {}
        for record in self.world.log.records(TOPICS.name(Topic.ROLLOUT_EVENTS)):
            event = ROLLOUT_EVENTS.decode(record.value)
            if event.state is RolloutState.GIVEN_UP:
                found.setdefault(event.rollout_id, set()).add(event.attempt_id)
        return found

    @property
    def num_closed(self) -> int:
        """Groups that the trainer takes; of some, credit's record is a dead letter or names no group."""
        return sum(
            len(members) == GROUP_SIZE and self.kinds.get(index) != "no group named"
            for index, members in self.members.items()
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("num_lost", [1, 8, 24])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "restarted"])
def test_lost_groups_hang_no_run_and_are_accounted_for(
    world: World, now: list[float], num_lost: int, seed: int, is_restarted: bool
) -> None:
    """All steps are made; each admitted group was consumed or is told as lost, and no other is lost."""
    lossy = LossyWorld(world, num_lost, seed)
    restarts = random.Random(seed).sample(range(200), 8 if is_restarted else 0)
    is_complete = lossy.run(now, restarts=restarts)
    assert is_complete, f"step {world.step} of {STEPS}, lost {Counter(lossy.kinds.values())}"
    state = world.admission.state
    lost_groups, kinds = state.lost_groups(), Counter(lossy.kinds.values())
    assert lost_groups == {number for number, kind in lossy.kinds.items() if kind == "cannot close"}
    assert state.progress().lost == len(lost_groups) + kinds["no group named"]
    assert world.num_consumed + state.progress().lost == state.progress().admitted
    assert lossy.num_closed == world.num_consumed
    attempts = lossy.given_up()
    assert {len(names) for names in attempts.values()} <= {1, MAX_GIVEN_UP}
    lost = {rollout for rollout, names in attempts.items() if len(names) == MAX_GIVEN_UP}
    assert {request.group.index for request in world.requests(Purpose.TRAIN) if request.rollout_id in lost} == (
        lost_groups
    )


@pytest.mark.parametrize(("when", "index"), [("pass 0, step 0", 0), ("pass 1, step 3", 2)])
def test_a_held_out_task_that_is_lost_hangs_no_run(
    world: World, now: list[float], caplog: pytest.LogCaptureFixture, when: str, index: int
) -> None:
    """Its rollout ends and no episode of it comes, however often it is given up: its pass is told without it."""
    caplog.set_level("INFO")
    ended: set[str] = set()
    is_complete = False
    for _ in range(100):
        world.ack(world.step)
        is_complete = is_complete or world.turn()
        for request in (*world.requests(Purpose.TRAIN), *world.requests(Purpose.VALIDATION)):
            if request.rollout_id not in ended:
                ended.add(request.rollout_id)
                is_lost = (request.purpose, request.group.index) == (Purpose.VALIDATION, index)
                world.end(request, episode=not is_lost)
        while len(world.requests(Purpose.TRAIN)) > 2 * world.num_consumed and world.step < world.handles.steps:
            world.train()
        now[0] += 10.0
    assert is_complete, f"step {world.step} of {world.handles.steps}"
    told = f"held-out {when}: mean reward 1.0000 over 1 tasks, versions {{}}, without reward: {{'lost': 1}}"
    assert told in caplog.text


@pytest.mark.parametrize("topic", [Topic.ROLLOUT_EVENTS, Topic.TRAINING_STEPS, Topic.WEIGHT_ACKS])
def test_copies_of_records_hang_no_run(world: World, now: list[float], topic: Topic) -> None:
    """A record that was appended once more is no sign of life of a lost rollout, takes no step back and no version."""
    lossy = LossyWorld(world, 4, 0)
    lossy.kinds = dict(enumerate(KINDS))
    is_complete = lossy.run(now, num_rounds=300, copies=[topic])
    assert is_complete, f"step {world.step} of {STEPS}, given up {lossy.given_up()}"
    state = world.admission.state
    assert state.lost_groups() == {KINDS.index("cannot close")}
    assert world.num_consumed + state.progress().lost == state.progress().admitted


@pytest.mark.parametrize("num_lost", [1, 24])
def test_groups_that_close_and_come_to_no_batch_hang_no_run(world: World, now: list[float], num_lost: int) -> None:
    """The last step waited for one of them, or admission for all that it had admitted."""
    lossy = LossyWorld(world, num_lost, 0)
    lossy.kinds = dict.fromkeys(range(STEPS * GROUPS_PER_STEP - num_lost, STEPS * GROUPS_PER_STEP), "no group named")
    assert lossy.run(now, restarts=[9]), f"step {world.step} of {STEPS}"
    assert world.admission.state.progress().admitted == STEPS * GROUPS_PER_STEP + num_lost


@pytest.mark.parametrize(("trainer_waits", "num_to_come"), [(False, 0), (True, 900)], ids=["trains", "streams lag"])
def test_no_group_is_taken_for_lost_while_it_may_be_on_its_way(
    world: World, now: list[float], trainer_waits: bool, num_to_come: int
) -> None:
    """Streams or trainer have not read all that was there: of the rest nothing is known."""
    lossy = LossyWorld(world, 1, 0)
    lossy.kinds = {0: "no group named"}
    for lossy.trainer_waits, to_come, expected in ((trainer_waits, num_to_come, 0), (True, 0, 1)):
        for _ in range(30):
            say(world, "credit", num_read=900 - to_come, num_to_come=to_come)
            lossy.run(now, num_rounds=1)
        assert world.admission.state.num_vanished == expected


def test_a_run_that_loses_group_after_group_stops_with_the_remedy(world: World, now: list[float]) -> None:
    """Those in their stead would be lost too, for ever; a new start has as many tries again."""
    lossy = LossyWorld(world, 0, 0)
    lossy.kinds = dict.fromkeys(range(1_000), "no group named")
    num_asked: list[int] = []
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"1\d\d in a row that are lost.*dead_letters"):
            lossy.run(now)
        num_asked.append(len(world.requests(Purpose.TRAIN)))
        world.start()
    assert num_asked[1] - num_asked[0] >= 100 * GROUP_SIZE


def say(world: World, stage: str, *, num_read: int, num_to_come: int) -> None:
    """What a worker tells of itself."""
    report(world, f"streams-{stage}-0", {"records": float(num_read), "lag": float(num_to_come)})


def report(world: World, process: str, counters: dict[str, float]) -> None:
    """What a process tells of itself."""
    told = ProcessReport(process=process, pid=1, since_ms=0, at_ms=0, counters=counters)
    world.append(Topic.PROCESS_STATUS, process, PROCESS_STATUS.encode(told))


def test_no_rollout_is_given_up_while_the_streams_have_not_read_what_was_there(world: World, now: list[float]) -> None:
    """Its episode may be among that; silence afterwards proves nothing."""
    lossy = LossyWorld(world, 1, 0)
    lossy.kinds = {0: "all episodes"}
    for number in range(40):
        if number < 20:
            say(world, "credit", num_read=5, num_to_come=3)
        lossy.run(now, num_rounds=1)
    assert lossy.members.get(0) is None
    for _ in range(20):
        say(world, "credit", num_read=8, num_to_come=0)
        lossy.run(now, num_rounds=1)
    assert lossy.members.get(0) == {0, 1}


def test_streams_that_are_always_busy_and_keep_up_delay_no_giving_up(world: World, now: list[float]) -> None:
    """Each report of a busy run tells of records to come; it is long since those of the lost rollout were read."""
    lossy = LossyWorld(world, 1, 0)
    lossy.kinds = {0: "all episodes"}
    for number in range(20):
        for stage in ("normalize", "assemble", "credit"):
            say(world, stage, num_read=100 * number, num_to_come=50)
        lossy.run(now, num_rounds=1)
    assert lossy.members.get(0) == {0, 1}


def test_delays_of_stages_add_up_and_begin_anew_with_a_process() -> None:
    """Each stage reads what the one before has written; a process that was restarted counts from zero."""

    def of(stage: str, num_read: int, num_to_come: int, *, pid: int = 1) -> ProcessReport:
        counters = {"records": float(num_read), "lag": float(num_to_come)}
        return ProcessReport(process=f"streams-{stage}-0", pid=pid, since_ms=0, at_ms=0, counters=counters)

    delay = StreamDelay()
    assert delay.seconds(100.0) == 0.0
    delay.fold(of("normalize", 0, 10), 100.0)
    delay.fold(of("assemble", 0, 10), 100.0)
    assert delay.seconds(130.0) == 60.0
    delay.fold(of("normalize", 9, 10), 130.0)
    assert delay.seconds(130.0) == 60.0
    delay.fold(of("normalize", 19, 10), 140.0)
    delay.fold(of("assemble", 30, 0), 140.0)
    assert delay.seconds(140.0) == 10.0
    delay.fold(of("normalize", 0, 10, pid=2), 150.0)
    delay.fold(of("normalize", 9, 10, pid=2), 200.0)
    assert delay.seconds(200.0) == 70.0 + 60.0
    delay.fold(of("normalize", 10, 10, pid=2), 210.0)
    assert delay.seconds(210.0) == 60.0 + 70.0
    delay.fold(of("normalize", 10, 10_000, pid=2), 220.0)
    delay.fold(of("normalize", 11, 5, pid=2), 230.0)
    delay.fold(of("normalize", 16, 5, pid=2), 240.0)
    assert delay.seconds(240.0) == 10.0 + 100.0, "partitions that it lost are not waited for"
