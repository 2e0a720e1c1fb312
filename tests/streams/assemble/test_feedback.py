"""Feedback that comes while a captured episode is open: what it is about, several ratings, revisions, any order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.streams.make import Item, Streams, call, call_id, closed, config, event, llm_span, otlp, reward, rollout
from tracegrad.schemas.ids import new_tool_call
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, EPISODES, Episode, Score
from tracegrad.schemas.records.rollouts import Reward
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig
from tracegrad.streams.ratings import rated_anew

KEY = "5e" * 16
ASKED = ToolCall(id=new_tool_call(KEY), name="calc", arguments="{}")
CALLS = [
    call("a", None, [1], [2], trace_id="c" * 32, conversation_key=KEY, tool_calls=(ASKED,)),
    call("b", None, [1, 2, 3], [4], trace_id="c" * 32, conversation_key=KEY),
]


def said(value: float, by: str, *, target: str | None = None, at_ms: int = 1, **changes: Any) -> Reward:
    """As the rewards gateway writes it."""
    given: dict[str, Any] = {"rollout_id": "", "attempt_id": "", "name": "reward", "source": "feedback"}
    given |= {"conversation_key": KEY, **changes}
    return Reward(value=value, idempotency_key=by, target=target, at_ms=at_ms, **given)


def episode_of(*items: Item, sources: tuple[str, ...] = ("feedback",)) -> Episode:
    """The one episode of these."""
    streams = Streams(config(reward_sources=sources, select=SelectConfig(capture_all=True)))
    streams.feed(*items)
    streams.tick(0.0, 100.0)
    return streams.episode


def test_feedback_on_an_answer_or_a_tool_call_is_that_calls() -> None:
    """A tool call's is the call's that asked for it; neither is the episode's own."""
    episode = episode_of(*CALLS, said(1.0, "k1", target=call_id("b")), said(0.5, "k2", target=ASKED.id))
    assert [[one.value for one in made.rewards] for made in episode.calls] == [[0.5], [1.0]]
    assert (episode.reward, episode.unscored, len(episode.rewards)) == (None, "no_reward", 2)


def test_several_ratings_of_one_thing_are_their_mean() -> None:
    """Never their sum; ratings of other names are of other things."""
    episode = episode_of(*CALLS, said(1.0, "k1"), said(0.0, "k2"), said(0.25, "k3", name="stars"))
    assert (episode.reward, len(episode.rewards)) == (0.75, 3)
    target = call_id("b")
    rated = episode_of(*CALLS, said(1.0, "k1", target=target), said(-1.0, "k2", target=target))
    assert [one.value for one in rated.calls[1].rewards] == [0.0]


def test_the_same_key_revises_in_any_order() -> None:
    """What was said last counts, once, however often and whenever each comes."""
    items: list[Item] = [*CALLS, said(1.0, "k1", at_ms=5), said(-1.0, "k1", at_ms=9), said(-1.0, "k1", at_ms=9)]
    records = {EPISODES.encode(episode_of(*CALLS, *order)) for order in itertools.permutations(items[2:])}
    assert len(records) == 1
    (record,) = records
    assert (EPISODES.decode(record).reward, len(EPISODES.decode(record).rewards)) == (-1.0, 1)


@pytest.mark.parametrize("value", [-1.0, -0.5, 0.0, 0.25, 0.5, 0.75])
def test_of_two_words_under_one_key_at_one_time_one_counts_whenever_they_come(value: float) -> None:
    """Before the close, behind it, or one of each."""
    said_once = [said(1.0, "k1"), said(value, "k1")]
    orders = [*itertools.permutations(said_once)]
    before = {episode_of(*CALLS, *order).reward for order in orders}
    between = {rated_anew(episode_of(*CALLS, first), [last]).reward for first, last in orders}
    assert len(before | between) == 1


def test_feedback_that_comes_before_the_calls_is_theirs() -> None:
    """Topics have no order among each other."""
    first, last = said(1.0, "k1"), said(0.5, "k2", target=call_id("b"))
    orders: list[list[Item]] = [[first, last, *CALLS], [*CALLS, last, first]]
    records = {EPISODES.encode(episode_of(*items)) for items in orders}
    assert len(records) == 1


def test_feedback_on_a_trace_goes_with_it_to_its_conversation() -> None:
    """Its spans name the conversation, and what is said of the trace is said of that."""
    trace = "d" * 32
    spans = otlp(llm_span(trace, 1, "x", gen_ai__conversation__id="room 7"))
    streams = Streams(config(reward_sources=("feedback",), select=SelectConfig(capture_all=True)))
    streams.feed(spans, said(1.0, "k1", conversation_key=trace), call("x", None, [1], [2], trace_id=trace))
    streams.tick(*range(0, 100, 20))
    episode = streams.episode
    assert (episode.reward, len(episode.calls), episode.episode_id == trace) == (1.0, 1, False)


@pytest.mark.parametrize("sources", [("grader:*",), ("agent",)])
def test_where_no_gateway_takes_feedback_it_is_shown_and_ignored(sources: tuple[str, ...]) -> None:
    """As any other reward whose source does not count."""
    episode = episode_of(*CALLS, said(1.0, "k1"), sources=sources)
    assert (episode.reward, episode.rewards, episode.num_unauthorised_rewards) == (None, (), 1)


def rated_attempt(by: str = "k1") -> Streams:
    """A runner's attempt that its grader gave .5 and somebody else -1, later, under this key."""
    own = rollout(1)
    calls = [call("z", own, [1], [2])]
    streams = Streams(config(reward_sources=("grader:*", "feedback")))
    given = reward(own, 0.5)
    of_it = {"rollout_id": own, "attempt_id": "a001", "conversation_key": ""}
    rated = said(-1.0, by or given.idempotency_key, at_ms=given.at_ms + 1, **of_it)
    streams.feed(*calls, closed(own, calls), rated, given, event(own))
    return streams


@pytest.mark.parametrize("by", ["k1", ""], ids=["own key", "the grader's"])
def test_feedback_on_a_runners_attempt_leaves_its_reward_to_the_grader(by: str) -> None:
    """Under the awaited name too, for whether it came before the end is chance; and under the grader's key."""
    episode = rated_attempt(by).episode
    assert (episode.reward, [one.source for one in episode.rewards]) == (0.5, ["grader:grade"])


@pytest.mark.parametrize("trains", [False, True])
def test_what_counts_in_a_later_episode_is_not_late_for_the_one_before(trains: bool) -> None:
    """Else a receipt says late, and joined when the episode's marker is there. Where episodes wait it is for both."""
    streams = Streams(config(reward_sources=("feedback",), select=SelectConfig(capture_all=True, train=trains)))
    streams.feed(*CALLS)
    streams.tick(0.0, 100.0)
    streams.feed(call("z", None, [5], [6], trace_id="d" * 32, conversation_key=KEY), said(1.0, "k1"))
    streams.tick(100.0, 200.0)
    heard = {piece for value in streams.values(Topic.CLOSED_EPISODES) for piece in CLOSED.decode(value).heard}
    scores = [one for one in map(EPISODE_SCORES.decode, streams.values(Topic.EPISODE_SCORES)) if isinstance(one, Score)]
    assert (len(heard), len(scores)) == (1, 1 if trains else 0)


def test_feedback_on_nothing_that_was_ever_called_makes_no_episode() -> None:
    """Its key is remembered as closed, and a call that comes later is an episode all the same."""
    streams = Streams(config(reward_sources=("feedback",), select=SelectConfig(capture_all=True)))
    streams.feed(said(1.0, "k1"))
    streams.tick(0.0, 100.0)
    assert streams.values(Topic.EPISODES) == []
    streams.feed(*CALLS)
    streams.tick(200.0, 300.0)
    episode = streams.episode
    assert (len(episode.calls), episode.reward) == (2, None)
