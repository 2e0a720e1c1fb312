"""What `up` says of the traffic that it trains on: who rates, by version, what can train, how old it is by then."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state, read, tell
from tests.memory_log import MemoryLog
from tests.serving import until
from tests.streams.assemble.test_feedback import said
from tests.streams.credit.strategies.test_conversations import conversation, folded
from tests.streams.make import TOPICS, Streams
from tracegrad.consumers.views.activity import activity_in
from tracegrad.consumers.views.captured import RatedShare, TrafficLine
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.terminal import Event, StepLines, TrafficLines
from tracegrad.consumers.views.watch import Watcher
from tracegrad.schemas.records.calls import SamplingParameters
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting
from tracegrad.schemas.topics import Topic

RATED, UNRATED = "a1" * 16, "b2" * 16


def traffic() -> Streams:
    """A rated conversation and one that nobody rated, of which one call of three cannot train."""
    cut = SamplingParameters(temperature=1.0, top_p=0.5)
    rated = conversation(("a", True), ("b", False), key=RATED)
    unrated = conversation(("c", True), key=UNRATED, sampling_used=cut, trace_id="d" * 32)
    return folded(*rated, *unrated, said(1.0, "k1", conversation_key=RATED))


def lines_of(*, wait_s: float, publish_every: int = 1) -> TrafficLines:
    """Of a run that trains what is up to 8 versions behind."""
    return TrafficLines(StepLines(), wait_s=wait_s, max_staleness=8, publish_every=publish_every)


def at_pace(state: RunState, lines: TrafficLines, seconds: float, begin: int = 1) -> list[Event]:
    """What is said of five steps, so many seconds apart, each an update."""
    known = next(iter(fold_all(new_state(), small_run(), [Topic.TRAINING_STEPS]).steps))
    events: list[Event] = []
    for number in range(begin, begin + 5):
        step = replace(known, step=number, version=number, ended_at_ms=int(1e12 + number * seconds * 1000))
        events += lines.news(tell(state, Topic.TRAINING_STEPS, step), 0.0)
    return events


@pytest.mark.parametrize("order", [(Topic.EPISODES, Topic.CLOSED_GROUPS), (Topic.CLOSED_GROUPS, Topic.EPISODES)])
def test_the_share_that_was_rated_and_can_train_is_told_after_each_step(order: tuple[Topic, ...]) -> None:
    """By version, since who rates is not everybody; whichever topic is read first, and read twice."""
    lines, state = lines_of(wait_s=9.0), new_state()
    read(lines, state, traffic(), (*order, *order))
    (*_, last) = [event.traffic for event in at_pace(state, lines, 3.0) if event.kind == "traffic"]
    assert last == TrafficLine(
        num_rated=1, num_closed=2, num_trainable=2, num_calls=3,
        by_version=(RatedShare(version=3, num_rated=1, num_closed=2),), versions_behind=3.0,
    )  # fmt: skip
    assert last.text == (
        "rated 1 of 2 conversations (v3 1/2); 2 of 3 calls can train; feedback is awaited for 3.0 versions"
    )


def test_a_wait_of_more_versions_than_may_train_is_said_once_with_what_to_change() -> None:
    """And again when it was well meanwhile."""
    lines, state = lines_of(wait_s=60.0), new_state()
    (stale,) = [event for event in at_pace(state, lines, 3.0) if event.kind == "stale"]
    assert "awaited for 20.0 versions" in stale.text and "groups_per_step or [publish] every" in stale.text
    assert not [event for event in at_pace(state, lines, 3.0, begin=6) if event.kind == "stale"]


def test_the_wait_is_counted_in_versions_that_are_published() -> None:
    """A version every four updates: 20 of these are 5 versions, though the five steps seen led to one at most."""
    lines, state = lines_of(wait_s=60.0, publish_every=4), new_state()
    read(lines, state, traffic(), (Topic.EPISODES, Topic.CLOSED_GROUPS))
    events = at_pace(state, lines, 3.0)
    assert {event.traffic.versions_behind for event in events if event.traffic is not None} == {None, 5.0}
    assert "stale" not in {event.kind for event in events}


def test_nothing_is_said_of_traffic_before_any_has_closed() -> None:
    """Nor of groups of tasks."""
    lines, state = lines_of(wait_s=9.0), new_state()
    events = read(lines, state, small_run(), (Topic.EPISODES, Topic.CLOSED_GROUPS, Topic.TRAINING_STEPS))
    assert "step" in {event.kind for event in events} and "traffic" not in {event.kind for event in events}


def test_a_run_that_goes_on_knows_which_step_is_next_and_what_waits_for_it() -> None:
    """What an earlier start made of conversations counts, and of its steps the last one is said."""
    log, streams = MemoryLog(), traffic()
    log.create_topics(TOPICS, policies=["policy"])
    known = next(iter(fold_all(new_state(), small_run(), [Topic.TRAINING_STEPS]).steps))
    steps = [replace(known, step=number, version=number, accounting=Accounting()) for number in (1, 2)]
    for step in steps:
        log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(step), (), 0)
    for record in streams.log[Topic.CLOSED_GROUPS] * 2:  # read twice, counted once
        log.append(TOPICS.name(Topic.CLOSED_GROUPS), record.key, record.value, record.headers, 0)
    now = partial(activity_in, steps=None, groups_per_step=4, concurrency=None)
    lines = TrafficLines(StepLines(now=now), wait_s=9.0, max_staleness=8, publish_every=1)
    told: list[Event] = []
    watcher = Watcher(log, TOPICS, new_state(), lines, told.append, begin="end")
    watcher.start()
    until(lambda: any(event.kind == "now" for event in told), 30)
    watcher.close()
    assert [event.text for event in told if event.kind == "step"] == ["step 2"]
    (waits,) = {event.text for event in told if event.kind == "now"}
    assert "1 of 4 groups of step 3 are there" in waits
