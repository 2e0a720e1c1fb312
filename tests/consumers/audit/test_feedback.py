"""The accounting of feedback: each piece on `rewards` is a fact, and what an episode counts is on `rewards`."""

from __future__ import annotations

import pytest

from tests.consumers.audit.rated_run import rated_run
from tests.consumers.audit.small_run import audited, memory_log
from tests.memory_log import MemoryLog
from tests.streams.assemble.test_feedback import CALLS, KEY, rated_attempt, said
from tests.streams.credit.strategies.test_conversations import TURNS, conversation, folded
from tests.streams.credit.test_feedback_window import Run, second_request
from tests.streams.make import TOPICS, Streams, config
from tracegrad.compose.run.report import report_lines
from tracegrad.consumers.audit.account import Report
from tracegrad.schemas.log.protocol import Log, TopicPartition
from tracegrad.schemas.records.rollouts import REWARDS
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.config import SelectConfig


def test_feedback_that_came_behind_its_episode_is_accounted_for() -> None:
    """On a topic of its own; without that it is named."""
    streams = rated_run()
    streams.feed(said(0.5, "late"))
    assert missing(streams) == []
    streams.log[Topic.EPISODE_SCORES] = []
    assert missing(streams) == [f"feedback on no episode and behind none: reward:feedback:{KEY}:late"]


def missing(streams: Streams) -> list[str]:
    """What an audit misses of rewards."""
    return [line for line in audited(streams).missing if "reward" in line]


def test_feedback_that_counts_is_accounted_for() -> None:
    """On its topic, among the facts, on the episode."""
    assert missing(rated_run()) == []


def test_feedback_on_an_episode_that_is_not_on_the_log_is_named() -> None:
    """Somebody put it there, or took it away."""
    streams = rated_run()
    streams.log[Topic.REWARDS] = [
        one for one in streams.log[Topic.REWARDS] if REWARDS.decode(one.value).idempotency_key != "k1"
    ]
    assert [line for line in missing(streams) if f"feedback:{KEY}:k1" in line] != []
    streams = rated_run()
    streams.log[Topic.EPISODE_EVENTS] = []
    assert [line for line in missing(streams) if f"never normalised: reward:feedback:{KEY}:k1" in line] != []


def test_feedback_that_cannot_count_is_not_missed() -> None:
    """On a runner's attempt, whose reward is the grader's; in a run that takes none and reads another's topics."""
    assert missing(rated_attempt()) == []
    streams = Streams(config(reward_sources=("grader:*",), select=SelectConfig(capture_all=True)))
    streams.feed(*CALLS, said(1.0, "k1"))
    streams.tick(0.0, 100.0)
    assert missing(streams) == [f"feedback on no episode and behind none: reward:feedback:{KEY}:k1"]
    found = audited(streams, takes_feedback=False)
    assert [line for line in found.missing if "reward" in line] == []
    assert found.feedback.terms == {"ignored": 1}


def test_one_person_s_feedback_on_two_conversations_is_two_pieces() -> None:
    """Under one idempotency key, the person's name, say."""
    other = "7a" * 16
    run = Run()
    run.feed(*conversation(*TURNS), *conversation(("x", True), key=other))
    run.wait(12)
    run.feed(said(1.0, "anna"), said(1.0, "anna", conversation_key=other))
    run.wait(100)
    run.streams.log[Topic.EPISODE_SCORES] = [
        one for one in run.streams.log[Topic.EPISODE_SCORES] if other.encode() not in (one.value or b"")
    ]
    assert missing(run.streams) == [f"feedback on no episode and behind none: reward:feedback:{other}:anna"]


def test_a_conversation_that_waits_for_feedback_is_open() -> None:
    """Unscored it is when its time is over; also where all that it bears was said before it began."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(20)
    log = memory_log(run.streams)
    log.groups[TOPICS.group(Stage.CREDIT)][TopicPartition(TOPICS.name(Topic.EPISODES), 0)] = 0
    found = report(log)
    assert (found.episodes.terms, found.missing) == ({"open groups": 1}, [])
    run.wait(80)
    assert report(run.streams).episodes.terms == {"unscored": 1}
    run.feed(second_request(), said(1.0, "k9", at_ms=49_999))
    run.wait(200)
    found = report(run.streams)
    assert (found.episodes.terms, found.missing) == ({"unscored": 2}, [])


def report(run: Streams | Log, *, trains: bool = True) -> Report:
    """Of a run that trains on what is captured, or not."""
    return audited(run, trains_captured=trains)


def two_conversations() -> Streams:
    """One of them is rated."""
    return folded(*conversation(*TURNS), *conversation(("x", True), key="7a" * 16), said(1.0, "k1"))


def test_rated_conversations_are_groups_and_the_others_are_unscored() -> None:
    """Each in one term."""
    found = report(two_conversations())
    assert found.episodes.terms == {"in groups": 1, "unscored": 1}
    assert found.groups.terms == {"waiting": 1}
    assert report(folded(*conversation(*TURNS), train=False), trains=False).episodes.terms == {"captured": 1}


@pytest.mark.parametrize("lost", [Topic.TRANSITIONS, Topic.CLOSED_GROUPS])
def test_a_rated_conversation_that_is_lost_is_named(lost: Topic) -> None:
    """Its group's record, or the marker that it was made."""
    streams = two_conversations()
    streams.log[lost] = []
    assert report(streams).num_missing > 0
    assert any("5e" * 16 in line for line in report(streams).missing)


def test_feedback_is_accounted_for_by_what_became_of_it() -> None:
    """On a line of its own; what no key vouches for is no feedback."""
    run = Run()
    run.feed(*conversation(*TURNS), said(1.0, "k1"), said(0.5, "k1"), said(0.5, "k2", target="nowhere"))
    run.wait(100)
    log = memory_log(run.streams)
    forged = REWARDS.encode(said(1.0, "forged"))
    MemoryLog.append(log, TOPICS.name(Topic.REWARDS), None, forged, (), 0)
    found = report(log)
    assert (found.feedback.total, found.feedback.terms) == (2, {"joined": 1, "late": 1})
    assert "feedback  2 = 1 joined + 1 late" in report_lines(found)
    assert found.unverified == [f"{TOPICS.name(Topic.REWARDS)}/0/3: unsigned"]
    assert [line for line in found.missing if "feedback" in line or "reward" in line] == []


def test_feedback_that_stages_heard_of_and_nobody_posted_is_unknown() -> None:
    """Somebody took it from its topic."""
    run = Run()
    run.feed(*conversation(*TURNS), said(1.0, "k1"))
    run.wait(100)
    run.streams.log[Topic.REWARDS] = []
    found = report(run.streams)
    assert found.feedback.terms == {"unknown": 1}
    assert any("k1" in line for line in found.missing)


def test_feedback_that_found_no_room_is_dead_lettered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credit holds so many pieces, and no more."""
    monkeypatch.setattr("tracegrad.streams.credit.feedback_window._MAX_SAID", 2)
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(20)
    run.feed(*(said(1.0, f"k{number}") for number in range(5)))
    run.wait(100)
    assert report(run.streams).feedback.terms == {"joined": 2, "dead-lettered": 3}
    assert run.undone() == []
