"""The agent's own word on its reward: by default it changes nothing; trusted, the last word of its own spans counts."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from tests.streams.make import (
    HOST,
    RUN_HASH,
    Item,
    Streams,
    call,
    call_id,
    closed,
    config,
    event,
    llm_span,
    otlp,
    raw,
    reward,
    rollout,
    span,
)
from tracegrad.schemas.credentials import Holder, attempt_holder, new_host
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.rollouts import Reward
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

R1 = rollout(1)
OWN = R1 + "a001"
CALLS = [call("a", R1, [1], [2])]
TRUSTED = ("grader:*", "agent")
LINK: Any = {
    "agentlightning__link__0__key_match": "gen_ai.response.id",
    "agentlightning__link__0__value_match": call_id("a"),
}
"""Of a reward, to the call."""


def says(number: int, value: float, *, at: int = 0, trace: str = OWN, **more: Any) -> bytes:
    """A span that names a reward."""
    attributes = {"agentlightning__reward__0__name": "primary", "agentlightning__reward__0__value": value, **more}
    return otlp(span(trace, number, "agentlightning.annotation", at=at, **attributes), is_counted=True)


def posted(value: float, at_ms: int) -> Reward:
    """What the agent posted, as the gateway writes it."""
    key = f"{R1}/a001/agent"
    return reward(R1, value, name="agent", source="agent", idempotency_key=key, at_ms=at_ms)


def closing(*items: Item, sources: tuple[str, ...] = ("grader:*",), holder: Holder = HOST, **end: Any) -> Episode:
    """The episode of these spans and rewards, a call, and an end that counts the spans of its host."""
    num_own = sum(isinstance(item, bytes) for item in items) if holder == HOST else 0
    streams = Streams(config(reward_sources=sources))
    streams.feed(*items, *CALLS, closed(R1, CALLS), holder=holder)
    streams.feed(event(R1, **{"spans_exported": num_own, **end}))
    streams.tick(0.0, 100.0)
    return streams.episode


def test_by_default_what_an_agent_says_changes_nothing() -> None:
    """By span, by post, for a call, over and over: the same rewards, transitions of the grader's alone, and a count."""
    honest = closing(reward(R1, 0.5))
    forged = closing(
        *(says(number, 1e6, at=number) for number in range(1, 4)),
        says(9, 1e6, **LINK),
        posted(1e6, 5),
        reward(R1, 0.5),
    )
    assert (honest.reward, forged.reward) == (0.5, 0.5)
    assert (forged.rewards, forged.calls[0].rewards) == (honest.rewards, honest.calls[0].rewards)
    assert forged.num_unauthorised_rewards == 3  # the span's, the post's, the call's
    assert honest.num_unauthorised_rewards == 0


def test_trusted_it_counts_beside_the_grader() -> None:
    """The sum; without a grader it is alone."""
    both: dict[str, Any] = {"rewards_awaited": ("reward", "agent"), "sources": TRUSTED}
    episode = closing(says(1, 0.25), reward(R1, 0.5), **both)
    assert (episode.reward, episode.closed_by) == (0.75, "complete")
    assert [(one.name, one.source) for one in episode.rewards] == [("agent", "agent"), ("reward", "grader:grade")]
    assert closing(says(1, 0.25), sources=("agent",), rewards_awaited=("agent",)).reward == 0.25


def test_the_last_word_counts_in_any_order() -> None:
    """Of spans and posts, however they arrive."""
    items: list[Item] = [says(1, 0.1, at=10**6), says(2, 1.0, at=9 * 10**6), posted(0.5, 5)]
    for order in itertools.permutations(items):
        assert closing(*order, sources=TRUSTED, rewards_awaited=("agent",)).reward == 1.0
    items.append(posted(0.75, 20))
    assert closing(*items, sources=TRUSTED, rewards_awaited=("agent",)).reward == 0.75


def test_further_dimensions_are_not_summed() -> None:
    """The first is the reward."""
    more: Any = {"agentlightning__reward__1__name": "short", "agentlightning__reward__1__value": 7.0}
    assert closing(says(1, 0.25, **more), sources=TRUSTED, rewards_awaited=("agent",)).reward == 0.25
    captured = Streams(config(reward_sources=TRUSTED, select=SelectConfig(capture_all=True)))
    trace = "c" * 32
    captured.feed(call("a", None, [1], [2], trace_id=trace), says(1, 0.25, trace=trace, **more))
    captured.tick(0.0, 100.0)
    episode = captured.episode
    assert (episode.reward, [one.name for one in episode.rewards]) == (0.25, ["agent", "agent.short"])


def test_one_that_is_linked_to_an_answer_is_that_calls() -> None:
    """It is no reward of the episode."""
    episode = closing(says(1, 0.25, **LINK), says(2, 1.0), sources=TRUSTED, rewards_awaited=("agent",))
    assert episode.reward == 1.0
    assert [one.value for one in episode.calls[0].rewards] == [0.25]


@pytest.mark.parametrize(
    "holder", [Holder(""), new_host(), attempt_holder(R1, "b002")], ids=["nobody", "host", "other"]
)
def test_trusted_is_the_attempts_own_agent_and_nobody_else(holder: Holder) -> None:
    """A span that came with another's credential, or none, names no reward of this attempt."""
    episode = closing(says(1, 1e6), holder=holder, sources=("*",), rewards_awaited=("agent",))
    assert (episode.reward, episode.unscored) == (None, "missing: agent")
    assert (episode.rewards, episode.num_unauthorised_rewards) == ((), 1)


def test_an_agent_that_says_nothing_is_unscored_after_a_short_wait() -> None:
    """Never 0; the wait is `deadline_s`, since nobody counts what an agent will say."""
    streams = Streams(config(reward_sources=TRUSTED, deadline_s=5.0, incomplete_s=60.0))
    streams.feed(*CALLS, closed(R1, CALLS), event(R1, rewards_awaited=("agent",)))
    streams.tick(0.0, 6.0)
    episode = streams.episodes[0]
    assert (episode.reward, episode.unscored, episode.closed_by) == (None, "missing: agent", "deadline")


def test_the_same_spans_give_the_same_record_untrusted() -> None:
    """But for what is shown: a run that trusts nobody trains on equal bytes, whatever its agents say."""
    plain = closing(otlp(llm_span(OWN, 1, "a")), otlp(span(OWN, 2)), reward(R1))
    spoken = closing(otlp(llm_span(OWN, 1, "a")), says(2, 1e6), reward(R1))
    same = {"num_unauthorised_rewards": 0}
    assert EPISODES.encode(msgspec.structs.replace(spoken, **same)) == EPISODES.encode(plain)
    assert R1.startswith(RUN_HASH)


def test_a_rollout_of_agent_lightning_is_one_captured_episode() -> None:
    """Its calls by the path of its proxy, its spans, in several traces, by their resource: all under one key."""
    key = conversation_key("ro-1a2b3c4d5e6f")
    theirs: dict[str, Any] = {"agentlightning__rollout_id": "ro-1a2b3c4d5e6f", "agentlightning__attempt_id": "at-1a2b"}
    said: dict[str, Any] = {"agentlightning__reward__0__name": "primary", "agentlightning__reward__0__value": 0.5}
    run = Streams(config(reward_sources=TRUSTED, select=SelectConfig(capture_all=True)))
    run.feed(
        otlp(span("c" * 32, 1, "agentlightning.message"), **theirs),
        otlp(span("d" * 32, 2, "agentlightning.annotation", **said), **theirs),
    )
    run.append(Topic.LLM_CALLS, raw(call("a", None, [1], [2], conversation_key=key))[1])
    run.tick(*range(0, 200, 20))
    episode = run.episode
    assert (episode.episode_id, len(episode.calls), episode.num_spans, episode.reward) == (key, 1, 2, 0.5)
