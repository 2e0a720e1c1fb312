"""One state for every view: whatever the order between topics, once each, and bounded."""

from __future__ import annotations

import random

import msgspec

from tests.consumers.audit.small_run import records, small_run, step
from tests.consumers.views.folding import fold_all, new_state, tell
from tests.seeds import any_seed
from tests.streams.make import Streams, event, rollout
from tests.versions import ack as acknowledged
from tests.versions import held_out
from tracegrad.consumers.views.activity import activity_in
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.terminal import StepLines
from tracegrad.schemas.records.process_status import ProcessState, SupervisedProcess
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.topics import Topic


def looks(state: RunState) -> dict[str, object]:
    """What views read."""
    return {
        "steps": state.steps,
        "open": sorted(state.open_attempts),
        "waiting": state.num_waiting_groups,
        "served": state.serving,
        "episodes": state.num_episodes,
        "held_out": dict(state.held_out.by_number),
        "newest": state.newest_step,
    }


@any_seed
def test_the_order_between_topics_does_not_matter(seed: int) -> None:
    """Each topic in order, interleaved at random; an episode that is read before its start leaves nothing open."""
    streams = small_run()
    left = {topic: list(kept) for topic, kept in streams.log.items() if kept}
    chance, state = random.Random(seed), new_state()
    while left:
        topic = chance.choice(sorted(left))
        state.fold(left[topic].pop(0), 0.0)
        left = {topic: kept for topic, kept in left.items() if kept}
    assert looks(state) == looks(fold_all(new_state(), streams, Topic))
    assert looks(state) | {"steps": 0, "served": 0, "newest": 0} == {
        **{"steps": 0, "served": 0, "newest": 0, "open": [], "waiting": 1, "episodes": 7},
        "held_out": {0: held_out(0, 0.0, version=0), 1: held_out(1, 1.0, version=2, since=2, step=2)},
    }


def test_records_that_come_again_count_once() -> None:
    """A topic that is read from its beginning a second time, as after a broker was away."""
    streams = small_run()
    once = fold_all(new_state(), streams, Topic)
    assert looks(fold_all(fold_all(new_state(), streams, Topic), streams, Topic)) == looks(once)


def test_an_engine_that_starts_again_serves_nothing_until_it_says_so() -> None:
    """What it acknowledged before tells nothing of the process that is there now; who reads says that it loads."""
    state = new_state()

    def engine(process: str, since_ms: int, said_ms: int = 0) -> None:
        told = SupervisedProcess(process=process, state=ProcessState.RUNNING, since_ms=since_ms, at_ms=said_ms)
        tell(state, Topic.PROCESS_STATUS, told)

    def ack(version: int, at_ms: int, engine_id: str = "engine-0") -> None:
        told = msgspec.structs.replace(acknowledged(version, engine_id=engine_id), at_ms=at_ms)
        tell(state, Topic.WEIGHT_ACKS, told)

    def told() -> tuple[list[int], bool]:
        state.newest_step = step(9)
        served = activity_in(state, steps=None, groups_per_step=1, concurrency=None).is_served
        return [one.version for one in state.serving], served

    assert told() == ([], True), "one without an engine of ours, as of a replay"
    engine("llm", 900)
    ack(1, 200)
    assert told() == ([1], True), "others' engines have no supervisor here"
    engine("engine", 100)
    assert told() == ([1], True)
    ack(2, 300)
    ack(1, 200)
    assert told() == ([2], True), "a copy of what was said before"
    engine("engine", 400)
    assert told() == ([], False)
    ack(2, 500)
    assert told() == ([2], True)
    ack(2, 500, "engine-1")
    engine("engine-1", 600)
    assert told() == ([2], True), "the other one has not started again"
    engine("engine-1", 450, said_ms=-1)
    assert told() == ([2], True), "a copy of an earlier word on the process"


def test_steps_of_a_void_epoch_and_of_other_policies_are_left_out() -> None:
    """As the audit counts them."""
    state = new_state()
    made = [step(1, ()), step(2, ()), step(3, ()), step(2, (), epoch=2)]
    tell(state, Topic.TRAINING_STEPS, *made, msgspec.structs.replace(step(4, (), epoch=2), policy="other"))
    assert [(kept.step, kept.epoch) for kept in state.steps] == [(1, 1), (2, 2)]


@any_seed
def test_a_lost_group_is_one_given_up_three_times_without_an_episode(seed: int) -> None:
    """Counted by attempts, whatever the order and however often they are read; an episode that comes makes it none."""
    state = new_state()
    group = GroupRef(id="0123abcd" + "f" * 16, size=2, member=0, index=0)
    of_one = [
        event(rollout(1), RolloutState.GIVEN_UP, attempt_id=name, group=group) for name in ("0000", "00aa", "00bb")
    ]
    other = event(rollout(2), RolloutState.GIVEN_UP, attempt_id="0000", group=group)
    told = [*of_one, *of_one, other]
    random.Random(seed).shuffle(told)
    tell(state, Topic.ROLLOUT_EVENTS, *told)
    assert state.num_lost_groups == 1
    lines = StepLines()
    assert [said.kind for said in [*lines.news(state, 0.0), *lines.news(state, 0.0)]] == ["lost"]
    streams = Streams()
    streams.feed(event(rollout(1), RolloutState.GIVEN_UP, attempt_id="00cc", group=group))
    tell(state, Topic.EPISODES, *streams.values(Topic.EPISODES))
    tell(state, Topic.ROLLOUT_EVENTS, told[0])
    assert state.num_lost_groups == 0


def test_what_is_malformed_or_of_no_interest_is_passed_over() -> None:
    """Whatever lies on a topic."""
    state = new_state()
    for topic in Topic:
        tell(state, topic, None, b"", b"\xc1", b"{}")
    assert looks(state) == looks(new_state())


def test_memory_is_bounded_by_what_is_remembered() -> None:
    """Attempts that start and never end."""
    state = new_state(remembered=10)
    tell(state, Topic.ROLLOUT_EVENTS, *(event(rollout(number), RolloutState.STARTED) for number in range(50)))
    assert len(state.open_attempts) == 10
    assert list(state.open_attempts)[-1].startswith(rollout(49))
    for _, record in records(small_run()):
        state.fold(record, 0.0)
    assert len(state.open_attempts) <= 10
