"""Feedback that comes when a conversation's episode has closed: within the wait it counts; order changes nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.schemas.released import GOLDEN
from tests.streams.assemble.test_feedback import KEY, said
from tests.streams.credit.strategies.test_conversations import TURNS, conversation, returns
from tests.streams.make import TOPICS, Item, Streams, call, call_id, config
from tracegrad.schemas.ids import stretch_id
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import FEEDBACK_LATE
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, EPISODES
from tracegrad.schemas.records.facts import Close
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig
from tracegrad.streams.credit.feedback_window import FeedbackWindow
from tracegrad.streams.ratings import pieces_of

WAIT_S = 60.0
IDLE_S = 10.0
EPISODE = EPISODES.decode((GOLDEN / "episode-1-w.json").read_bytes())


class Run:
    """Of a run that trains on what is captured, with a clock."""

    def __init__(self, **changes: Any) -> None:
        rules: dict[str, Any] = {
            "select": SelectConfig(capture_all=True, train=True),
            "feedback_wait_s": WAIT_S,
            "idle_s": IDLE_S,
        }
        self.streams = Streams(config(reward_sources=("feedback",), **rules | changes))
        self.now_s = 0.0

    def feed(self, *items: Item) -> None:
        """Now."""
        self.streams.feed(*items)

    def wait(self, seconds: float) -> None:
        """The clocks look twice a second, as workers' do."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            self.streams.tick(self.now_s)

    @property
    def num_late(self) -> float:
        """Pieces of feedback."""
        return self.streams.credit.metrics.value(FEEDBACK_LATE)

    def undone(self) -> list[str]:
        """Inputs of credit that are not done."""
        topics = (Topic.EPISODES, Topic.EPISODE_SCORES)
        return [f"{topic}@{record.offset}" for topic in topics for record in self.streams.undone(topic)]


def test_feedback_counts_until_people_had_their_time() -> None:
    """From the episode's close on; a revision too, and then nothing more."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(20)
    assert run.streams.groups == []
    run.feed(said(1.0, "k1", target=call_id("d")), said(0.5, "k2"))
    run.wait(20)
    run.feed(said(-1.0, "k1", target=call_id("d"), at_ms=9))
    run.wait(40)
    assert [(one.group_id, returns(rows)) for one, rows in run.streams.groups] == [(KEY, [0.5, 0.5, -0.5, -0.5])]
    # What was said of all of it could be about an answer in flight, too.
    assert run.undone() == ["episode_scores@2"]
    run.wait(50)
    assert (run.num_late, run.undone()) == (0, [])
    run.feed(said(1.0, "k3"))
    run.wait(100)
    assert (len(run.streams.groups), run.num_late, run.undone()) == (1, 1, [])


def test_what_nobody_rated_in_time_trains_nothing() -> None:
    """It is closed for good, so that a rating after that is late."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(80)
    run.feed(said(1.0, "k1"))
    run.wait(100)
    marker, late = (CLOSED.decode(value) for value in run.streams.values(Topic.CLOSED_GROUPS))
    assert (marker.id, marker.disposition, marker.heard) == (KEY, "unscored", ())
    assert (late.disposition, late.heard) == ("late", pieces_of([said(1.0, "k1")]))
    assert (run.streams.groups, run.num_late, run.undone()) == ([], 1, [])


def test_without_a_wait_a_conversation_is_what_it_was_when_it_closed() -> None:
    """Rated until then, or unscored."""
    run = Run(feedback_wait_s=0.0)
    run.feed(*conversation(*TURNS), said(1.0, "k1"))
    run.wait(12)
    ((_, rows),) = run.streams.groups
    assert (returns(rows), run.undone()) == ([1.0] * 4, [])


def test_feedback_on_nothing_is_let_go_after_the_wait() -> None:
    """Nobody ever called under its key."""
    run = Run()
    run.feed(said(1.0, "k1"))
    run.wait(30)
    assert run.undone() != []
    run.wait(100)
    assert (run.streams.groups, run.num_late, run.undone()) == ([], 1, [])


@pytest.mark.parametrize("bound", [{"max_open_bytes": 9_000}, {"max_open_groups": 6}])
def test_the_longest_waiting_conversations_close_early_where_room_is_short(bound: dict[str, Any]) -> None:
    """With what was said of them; none loses its calls."""
    run = Run(feedback_wait_s=1_000.0, **bound)
    keys = [f"{number:032x}" for number in range(1, 11)]
    for number, key in enumerate(keys):
        run.feed(*conversation((f"q{number}", True), key=key))
        run.wait(12)
        run.feed(said(1.0, "k", target=call_id(f"q{number}"), conversation_key=key))
        run.wait(1)
    assert keys[:4] <= [summary.group_id for summary, _ in run.streams.groups] < keys
    run.wait(1_100)
    assert [(summary.group_id, returns(rows)) for summary, rows in run.streams.groups] == [(key, [1.0]) for key in keys]
    assert (run.num_late, run.undone()) == (0, [])


def second_request(**changes: Any) -> Item:
    """Of the same conversation, in another trace, some seconds later."""
    given: dict[str, Any] = {"trace_id": "d" * 32, "conversation_key": KEY, "purpose": Purpose.UNKNOWN}
    return call("z", None, [5], [6], started_at_ns=50_000_000_000, answers_user=True, **given, **changes)


def test_each_episode_of_a_conversation_has_what_was_said_of_it() -> None:
    """By the answer that is named; what was said of all of it is about what was there by then."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(20)
    run.feed(second_request(), said(1.0, "k1", target=call_id("d")), said(0.25, "k2", at_ms=10_000))
    run.feed(said(-1.0, "k3", target=call_id("z"), at_ms=60_000), said(0.5, "k4", at_ms=60_000))
    run.wait(200)
    found = {summary.group_id: returns(rows) for summary, rows in run.streams.groups}
    # Of all of it first .25 was said, then .5, when both episodes were there.
    assert found == {KEY: [0.375, 0.375, 1.375, 1.375], stretch_id(KEY, call_id("z")): [-0.5]}
    assert run.undone() == []


ITEMS: list[Item] = [
    second_request(),
    said(1.0, "k1", target=call_id("d"), at_ms=20_000),
    said(0.0, "k1", target=call_id("d"), at_ms=30_000),
    said(0.5, "k2", at_ms=60_000),
    said(-1.0, "k3", target=call_id("z"), at_ms=60_000),
]


@pytest.mark.slow
def test_order_changes_nothing() -> None:
    """Of a next request, ratings, a revision: before the first episode closes or after, in any order, twice each."""
    outcomes = set()
    for order in itertools.permutations(ITEMS):
        for num_before in (0, 2):
            run = Run()
            # The first episode closes with some of it, for its silence is long enough.
            run.feed(*conversation(*TURNS), *(one for one in order[:num_before] if one is not ITEMS[0]))
            run.wait(12)
            rest = [one for number, one in enumerate(order) if number >= num_before or one is ITEMS[0]]
            run.feed(*rest, *order)
            run.wait(200)
            assert run.undone() == []
            outcomes.add(tuple(sorted(run.streams.values(Topic.TRANSITIONS))))
    ((first, second),) = outcomes
    assert {decode_group(one)[0].group_id for one in (first, second)} == {KEY, stretch_id(KEY, call_id("z"))}


def test_feedback_on_nothing_is_let_go_however_long_its_conversation_goes_on() -> None:
    """Else an input would never be done, and retention would take it. What is about an episode that waits stays."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(12)
    run.feed(said(1.0, "k1", target=call_id("nowhere")))
    for number in range(5):
        started_ns = (50 + 40 * number) * 10**9
        run.feed(call(f"z{number}", None, [5], [6], trace_id="d" * 32, conversation_key=KEY, started_at_ns=started_ns))
        run.wait(20)
        run.feed(said(0.5, f"k{number + 2}", target=call_id(f"z{number}")))
        run.wait(20)
    assert (run.num_late, "episode_scores@0" in " ".join(run.undone())) == (1, False)
    run.wait(200)
    assert (len(run.streams.groups), run.num_late, run.undone()) == (5, 1, [])


def taken_over(run: Run) -> None:
    """By a worker that reads all again, what people said first."""
    run.streams.credit.reset()
    markers = run.streams.log.get(Topic.CLOSED_GROUPS, [])
    run.streams.credit.restore(markers)
    for topic in (Topic.EPISODE_SCORES, Topic.EPISODES):
        for record in tuple(run.streams.log.get(topic, [])):
            emission = run.streams.credit.fold(record)
            run.streams.done |= {(position.topic, position.offset) for position in emission.done}
            for output in (*emission.outputs, *([emission.marker] if emission.marker else [])):
                run.streams.append(output.topic, output.value, output.key)


def test_a_worker_that_takes_over_loses_nothing_by_old_proposals() -> None:
    """That feedback was about nothing when it was proposed to let it go is no reason to do so before the episode is
    read."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(12)
    run.feed(said(1.0, "k1", target=call_id("d")))
    let_go = Close(episode_id=KEY, reason="unclaimed", before=len(run.streams.log[Topic.EPISODE_SCORES]))
    run.streams.append(Topic.EPISODE_SCORES, EPISODE_SCORES.encode(let_go))
    taken_over(run)
    run.wait(100)
    ((_, rows),) = run.streams.groups
    assert (returns(rows), run.num_late) == ([0.0, 0.0, 1.0, 1.0], 0)


def test_a_worker_that_takes_over_closes_where_it_was_proposed() -> None:
    """Whoever died behind the group's record, and before its marker, wrote the same bytes, whatever was said since."""
    run = Run()
    run.feed(*conversation(*TURNS), said(0.5, "k1"))
    run.wait(80)
    run.feed(said(1.0, "k2"))
    run.streams.log[Topic.CLOSED_GROUPS] = []
    taken_over(run)
    run.wait(200)
    first, again = run.streams.values(Topic.TRANSITIONS)
    assert (first == again, run.undone()) == (True, [])


def test_a_worker_that_takes_over_gives_the_same() -> None:
    """What was not done comes again, in another order of topics."""
    expected: set[bytes] = set()
    for restarts in (False, True):
        run = Run()
        run.feed(*conversation(*TURNS))
        run.wait(20)
        run.feed(said(1.0, "k1", target=call_id("d")), said(0.5, "k2"))
        run.wait(20)
        if restarts:
            run.streams.credit.reset()
            for topic in (Topic.EPISODE_SCORES, Topic.EPISODES):
                for record in run.streams.undone(topic):
                    assert run.streams.credit.fold(record).done == ()
        run.wait(100)
        assert run.undone() == []
        expected.update(run.streams.values(Topic.TRANSITIONS))
    assert len(expected) == 1


def test_a_worker_that_takes_over_waits_for_the_rest_of_the_time() -> None:
    """Else an episode whose workers are restarted before its time is over would wait for ever."""
    waiting = FeedbackWindow(60.0, IDLE_S)
    waiting.note_time(1_000)
    waiting.add_episode(EPISODE, 0, 1_000)
    assert [*waiting.due(500.0), *waiting.due(559.0)] == []
    waiting.clear()
    # The log goes on meanwhile.
    for at_ms in (1_000, 51_000, 40_000):
        waiting.note_time(at_ms)
    waiting.add_episode(EPISODE, 0, 1_000)
    assert [*waiting.due(700.0), *waiting.due(709.0)] == []
    assert [reason for reason, *_ in waiting.due(710.0)] == ["feedback"]


@pytest.mark.parametrize("life_s", [7.0, 25.0, 59.0])
def test_restarts_make_no_wait_longer_than_it_is_and_the_time_that_nobody_looked(life_s: float) -> None:
    """However often, and where the log stands still meanwhile."""
    closed_ms, down_s, now_s = 1_000_000, 3.0, 1_000.0
    while now_s < 2_000.0:
        waiting, began_s = FeedbackWindow(60.0, IDLE_S), 17.0  # of a clock of its own
        waiting.note_time(closed_ms)
        waiting.add_episode(EPISODE, 0, closed_ms)
        for second in range(round(life_s)):
            if [*waiting.due(began_s + second, round(1000 * (now_s + second)))]:
                assert 60.0 <= now_s + second - closed_ms / 1000 <= 60.0 + 1.0 + down_s
                return
        now_s += life_s + down_s
    pytest.fail("expected an end of the wait")


def test_an_episode_of_which_nobody_knows_when_it_closed_waits_from_now() -> None:
    """A record without a time is not one of 1970."""
    waiting = FeedbackWindow(60.0, IDLE_S)
    waiting.add_episode(EPISODE, 0, 0)
    assert [*waiting.due(5.0, 10**12), *waiting.due(64.0, 10**12)] == []
    assert len([*waiting.due(65.0, 10**12)]) == 1


def test_late_feedback_takes_no_room_from_what_is_closed() -> None:
    """Else a flood of it would make a worker that takes over forget groups, and write them once more."""
    run = Run(max_closed_ids=2)
    run.feed(*conversation(*TURNS), said(1.0, "k1"))
    run.wait(80)
    for number in range(5):
        run.feed(said(1.0, f"late-{number}"))
        run.wait(80)
    credit = run.streams.credit
    assert (len(run.streams.groups), credit.metrics.value(FEEDBACK_LATE)) == (1, 5)
    credit.reset()
    credit.restore(run.streams.log[Topic.CLOSED_GROUPS])
    (again,) = run.streams.log[Topic.EPISODES]
    assert credit.fold(again).done == (again.position,)


def closing(episode_id: str, offset: int, reason: str = "feedback") -> Record:
    """A proposal on `episode_scores`."""
    topic, value = TOPICS.name(Topic.EPISODE_SCORES), EPISODE_SCORES.encode(Close(episode_id=episode_id, reason=reason))
    return Record(topic=topic, partition=0, offset=offset, key=KEY.encode(), value=value)


def test_a_proposal_is_read_again_by_each_worker_until_its_episode_has_closed() -> None:
    """Else two deaths in a row, the first behind the group's record, would write that twice with other ratings."""
    run = Run()
    run.feed(*conversation(*TURNS), said(0.5, "k1"))
    run.wait(20)
    credit, (episode,) = run.streams.credit, run.streams.log[Topic.EPISODES]
    credit.reset()
    assert credit.fold(closing(KEY, 7)).done == ()
    assert credit.fold(closing(KEY, 9)).done == (closing(KEY, 9).position,)
    assert credit.fold(episode).done == (closing(KEY, 7).position, episode.position)


def test_a_proposal_whose_episode_never_comes_is_let_go() -> None:
    """It closed so long ago that nobody remembers; an input that is never done would stop the stage in the end."""
    credit = Run().streams.credit
    assert credit.fold(closing(KEY, 7)).done == ()
    assert [*credit.propose(0.0), *credit.propose(4_000.0)] == []
    later = closing(KEY, 9, reason="unclaimed")
    assert credit.fold(later).done == (closing(KEY, 7).position, later.position)
