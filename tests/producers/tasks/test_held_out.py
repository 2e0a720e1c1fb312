"""Held-out passes beside training: when each is due, what it is a score of, and that none of them hangs a run.

HYPOTHESIS_PROFILE=long plays 40 runs of each kind.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.producers.tasks.world import TOPICS, World
from tests.streams.make import call
from tests.versions import held_out, sampled_by
from tracegrad.producers.tasks.config import PaceConfig
from tracegrad.producers.tasks.held_out import last_step, next_pass, next_step
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EpisodeCall
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.rollouts import RolloutRequest
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import Topic

SEEDS = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 4
MANY = 600
"""Rounds that no run here needs."""
STEPS, G = 7, 2


@given(st.integers(0, 9), st.integers(1, 40))
def test_pass_p_is_that_of_step_p_times_n_at_most_the_last(every: int, steps: int) -> None:
    """From 0 on, without gaps, each after the one before has its score; groups go on where those of the last ended."""
    newest: HeldOutPass | None = None
    due = []
    while (one := next_pass(newest, every, steps)) is not None:
        due.append(one)
        begun = held_out(one.number, step=one.step, first_group=one.first_group, num_tasks=3)
        assert next_pass(begun, every, steps) == one, "until it has its score it is the one"
        newest = held_out(one.number, 0.5, version=1, step=one.step, first_group=one.first_group, num_tasks=3)
    expected = [min(p * every, steps) for p in range(-(-steps // every) + 1)] if every else [0, steps]
    assert [one.step for one in due] == expected
    assert [one.number for one in due] == list(range(len(due)))
    assert [one.first_group for one in due] == [3 * one.number for one in due]


@given(st.integers(0, 9), st.integers(1, 40), st.integers(1, 40))
def test_a_run_that_goes_on_with_more_steps_gets_passes_for_them(every: int, steps: int, more: int) -> None:
    """Its old last one stays; a run that is begun again with less is not measured again."""
    last = held_out(4, 0.5, version=1, step=steps)
    one = next_pass(last, every, steps + more)
    assert one is not None and (one.number, one.step) == (5, next_step(steps, every, steps + more))
    assert steps < one.step <= steps + more
    assert next_pass(last, every, steps) is None and next_pass(last, every, max(1, steps - 1)) is None


def test_training_goes_on_beside_a_pass_as_far_as_to_the_next_one() -> None:
    """Not before the first one is over; with eta 0 not at all."""
    first, second = next_pass(None, 3, 10), next_pass(held_out(0, 0.5, version=0), 3, 10)
    assert second is not None and second.step == 3
    assert [last_step(first, 3, 10, staleness=eta) for eta in (0, 2)] == [0, 0]
    assert [last_step(second, 3, 10, staleness=eta) for eta in (0, 1, 2)] == [3, 6, 6]
    assert last_step(second, 0, 10, staleness=2) == last_step(None, 3, 10, staleness=0) == 10


class Play:
    """Runner, streams, trainer and engine of a run, each a random amount of work a round."""

    def __init__(self, world: World, seed: int, *, num_restarts: int = 0, lost: frozenset[int] = frozenset()) -> None:
        self.world = world
        self.draw = random.Random(seed)
        self.speeds = {name: self.draw.choice((0.1, 0.5, 1.0)) for name in ("rollouts", "trainer", "engine")}
        self.restarts = set(self.draw.sample(range(60), num_restarts))
        self.lost = lost
        """Held-out groups of which no episode comes."""
        self.served = 0
        self.running: dict[str, int] = {}
        """Rollout in the works -> the version that was served when it began."""
        self.ended: dict[Purpose, set[int]] = {Purpose.TRAIN: set(), Purpose.VALIDATION: set()}
        self.admitted_at: list[tuple[int, int]] = []
        """(steps done, training groups asked for) after each round."""

    def run(self, now: list[float]) -> int:
        """How many rounds until the run is complete; MANY: it hangs."""
        self.world.start()
        self.world.ack(0)
        for number in range(MANY):
            if number in self.restarts:
                self.world.start()
            if self.world.turn():
                return number
            self.admitted_at.append((self.world.step, len(self.world.requests(Purpose.TRAIN)) // 2))
            for purpose in self.ended:
                for request in self.world.requests(purpose):
                    self.work(request)
            if self.draw.random() < self.speeds["trainer"] and self.can_train():
                self.world.train()
            if self.served < self.world.step and self.draw.random() < self.speeds["engine"]:
                self.served = self.world.step
                self.world.ack(self.served)
            now[0] += 10.0
        return MANY

    def work(self, request: RolloutRequest) -> None:
        ended, id_ = self.ended[request.purpose], request.rollout_id
        place = request.group.index * request.group.size + request.group.member
        if place in ended:
            return
        began = self.running.setdefault(id_, self.served)
        if self.draw.random() < self.speeds["rollouts"]:
            ended.add(place)
            is_held_out = request.purpose is Purpose.VALIDATION
            reward = float(self.draw.random() < 0.5)
            calls = (sampled(began, self.served),)
            episode = not (is_held_out and request.group.index in self.lost)
            self.world.end(request, reward=reward, calls=calls, episode=episode)

    def can_train(self) -> bool:
        """The next G groups, in the order of admission, are closed."""
        need = range(self.world.num_consumed * 2, (self.world.num_consumed + G) * 2)
        return self.world.step < STEPS and self.ended[Purpose.TRAIN].issuperset(need)

    def words(self) -> list[HeldOutPass]:
        """What tasks wrote of passes."""
        decoded = [WEIGHTS.decode(record.value) for record in self.world.log.records(TOPICS.name(Topic.WEIGHTS))]
        return [word for word in decoded if isinstance(word, HeldOutPass)]


def sampled(first: int, last: int) -> EpisodeCall:
    """A call of two tokens, by these versions of the run."""
    run = RunHash("ab12cd34")
    spans = (sampled_by(first, run=run), *([sampled_by(last, start=1, run=run)] if last > first else []))
    made = call("a", None, [1], [2, 3], versions=spans)
    return EpisodeCall(
        call_id=made.call_id, turn=0, agent=None, joined_by="none", policy="policy", parent_call_id=None,
        shared_tokens=0, suffix_ids=made.suffix_ids, sampled_ids=made.sampled_ids, logprobs=made.logprobs,
        versions=made.versions, temperature=1.0, finish_reason="stop", content=None, splice=made.splice,
    )  # fmt: skip


@pytest.fixture
def world(world: World) -> World:
    """Seven batches of two groups of two, two held-out tasks every second step."""
    world.config = msgspec.structs.replace(world.config, eval_every=2)
    world.handles = msgspec.structs.replace(world.handles, steps=STEPS, groups_per_step=G)
    world.start()
    return world


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("eta", [0, 1, 3])
@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("num_samples", [1, 3])
def test_every_pass_is_made_once_whatever_is_slow_and_restarted(
    world: World, now: list[float], seed: int, eta: int, every: int, num_samples: int
) -> None:
    """Each is begun and scored once, in order; its rollouts are asked for once; training is asked for as without it,
    and never runs further ahead than to the next pass; with eta 0 each is a score of one version, its step's."""
    world.config = msgspec.structs.replace(world.config, eval_every=every, eval_samples=num_samples)
    world.pace = PaceConfig(staleness=eta)
    play = Play(world, seed, num_restarts=seed % 3 * 4)
    assert play.run(now) < MANY, f"step {world.step}, {play.words()[-1]}"
    words, last = play.words(), -(-STEPS // every)
    assert [(word.number, word.score is not None) for word in words] == [
        (number, is_over) for number in range(last + 1) for is_over in (False, True)
    ]
    scored = [word for word in words if word.score is not None]
    assert [word.step for word in scored] == [min(number * every, STEPS) for number in range(last + 1)]
    requests = world.requests(Purpose.VALIDATION)
    assert len({request.rollout_id for request in requests}) == len(requests) == (last + 1) * 2 * num_samples
    assert {(request.task_id, request.group.index % 2) for request in requests} == {("e0", 0), ("e1", 1)}
    assert len(world.requests(Purpose.TRAIN)) == STEPS * G * 2
    for word in scored:
        assert word.score is not None and word.score.version is not None and word.score.mean is not None
        versions = [one.version for one in word.score.versions]
        limit = word.step if word.number == 0 or not eta else min((word.number + 1) * every, STEPS)
        assert word.step - eta <= word.since_version <= min(versions) <= max(versions) <= limit
    assert all(num_groups <= min(STEPS, step + eta + 1) * G for step, num_groups in play.admitted_at)


@pytest.mark.parametrize("eta", [0, 2])
@pytest.mark.parametrize("group", [0, 3, 5])
def test_a_lost_task_of_any_pass_is_left_out_of_it(world: World, now: list[float], eta: int, group: int) -> None:
    """It holds up its pass until it is given up, and training at most as far as to the next one."""
    world.pace = PaceConfig(staleness=eta)
    play = Play(world, 0, num_restarts=4, lost=frozenset({group}))
    assert play.run(now) < MANY, f"step {world.step}, {play.words()[-1]}"
    scored = [word.score for word in play.words() if word.score is not None]
    assert [score.num_scored for score in scored] == [1 if number == group // 2 else 2 for number in range(5)]


def test_a_pass_takes_no_training_group_its_place(world: World) -> None:
    """While its rollouts are in the works as many training groups are admitted as without it."""
    world.ack(0)
    finish(world, 0)
    for request in world.requests(Purpose.TRAIN):
        world.end(request)
    for step in (1, 2):
        world.train()
        world.ack(step)
    world.turn()
    assert len(world.requests(Purpose.VALIDATION)) == 4
    assert len(world.requests(Purpose.TRAIN)) == 2 * G * 2 + 2 * G * 2, "two batches ahead, as eta 1 has it"


def beside_traffic(world: World) -> World:
    """The same in a run that trains on captured traffic: groups come on their own."""
    world.config = msgspec.structs.replace(world.config, file=None)
    world.start()
    return world


def test_a_run_on_captured_traffic_admits_held_out_tasks_alone(world: World, now: list[float]) -> None:
    """Before its first step, every second one and at its end; it is complete when the last pass has its score, whatever
    restarts in between. Nothing of the pace holds it."""
    beside_traffic(world).ack(0)
    for number, step in enumerate((0, 2, 4, 6, 7)):
        while world.step < step:
            world.train()
            world.ack(world.step)
        world.start()
        world.turn()
        asked = world.requests(Purpose.VALIDATION)[2 * number :]
        assert [request.task_id for request in asked] == ["e0", "e1"]
        for request in asked[:1]:
            world.end(request)
        assert not world.turn()
        world.start()
        world.turn()
        for request in asked[1:]:
            world.end(request)
        now[0] += 10.0
        is_done = world.turn()
    assert is_done
    assert world.requests(Purpose.TRAIN) == [] and len(world.requests(Purpose.VALIDATION)) == 10
    assert [word.step for word in Play(world, 0).words()] == [0, 0, 2, 2, 4, 4, 6, 6, 7, 7]


def test_a_pass_that_training_has_overtaken_is_left_out(world: World) -> None:
    """The one after a slow pass is that of the newest step at which one was due: they never pile up."""
    beside_traffic(world).ack(0)
    world.turn()
    for step in range(1, 6):
        world.train()
        world.ack(step)
    finish(world, 0)
    finish(world, 2)
    assert [word.step for word in Play(world, 0).words()] == [0, 0, 4, 4]


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 40), st.integers(0, 40))
def test_no_pass_is_due_of_a_step_that_is_long_past(every: int, steps: int, newest: int, done: int) -> None:
    """At most one pass is behind; each is of a step of the passes' own; none is left out that training awaits."""
    newest, done = min(newest // every * every, steps), min(done, steps)
    one = next_pass(held_out(0, 0.5, version=0, step=newest), every, steps, done=done)
    if one is None:
        assert newest == steps
        return
    first = next_step(newest, every, steps)
    assert one.step == first if done <= next_step(first, every, steps) else done - every < one.step <= done
    assert first <= one.step and (one.step % every == 0 or one.step == steps)


def finish(world: World, first: int) -> None:
    """Plays the pass whose rollouts begin with that one."""
    world.turn()
    for request in world.requests(Purpose.VALIDATION)[first:]:
        world.end(request)
    world.turn()


def test_a_score_that_the_log_does_not_take_comes_later(world: World) -> None:
    """The pass has it when it is there; nothing is asked for twice."""
    world.ack(0)
    world.turn()
    for request in world.requests(Purpose.VALIDATION):
        world.end(request)
    world.log.fail_next(UnavailableError("away"))
    world.turn()
    assert world.requests(Purpose.TRAIN) == []
    world.turn()
    assert world.requests(Purpose.TRAIN) != []
    words = Play(world, 0).words()
    assert [word.score is not None for word in words] == [False, True]


def test_held_out_tasks_that_change_during_a_pass_are_refused(world: World, tmp_path: Path) -> None:
    """Its groups are numbered by them; between two passes they may."""
    world.ack(0)
    world.turn()
    (tmp_path / "eval.jsonl").write_text('{"id":"e0","input":0}\n')
    world.start()
    with pytest.raises(ConfigurationError, match="expected 2 tasks of 1 samples, with which held-out pass 0 began"):
        world.turn()
    world.config = msgspec.structs.replace(world.config, eval_file=None, eval_every=0)
    world.start()
    with pytest.raises(ConfigurationError, match="got 0 of 1"):
        world.turn()


def test_scores_of_passes_that_are_over_are_not_kept(world: World) -> None:
    """Nor taken up again by a restart, which reads all episodes once more."""
    world.ack(0)
    finish(world, 0)
    assert world.admission.state.held_out_scores() == {}
    world.start()
    world.turn()
    assert world.admission.state.held_out_scores() == {}
