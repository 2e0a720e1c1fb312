"""A recorded agent of Agent Lightning 0.3: what it said of its reward is read, and by default only shown."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.fixture import FIXTURES, Recording, load
from tests.frameworks.judge import episodes_of
from tests.streams.make import Streams, config, event, signed_by
from tracegrad.schemas.ids import key_in
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

pytestmark = pytest.mark.slow
TRACERS = ("agentops", "otel")


def recorded(tracer: str, way: str) -> Recording:
    """One of its recordings."""
    return load(FIXTURES / f"agent_lightning-{tracer}-{way}.msgpack.xz")


def trusting(recording: Recording) -> list[Episode]:
    """What the folds make of it with `trust_agent`, without a grader."""
    rules = config(run_hash=recording.run_hash, reward_sources=("agent",), select=SelectConfig(capture_all=True))
    streams = Streams(rules)
    for record in recording.records:
        streams.append(Topic(record.topic), record.value, record.key, headers=signed_by(recording.run_hash))
    if recording.rollout_id is not None:
        end: dict[str, Any] = {
            "attempt_id": recording.attempt_id,
            "spans_exported": None,
            "host": None,
            "rewards_awaited": ("agent",),
        }
        streams.feed(event(recording.rollout_id, **end))
    streams.tick(0.0, 1e4, 2e4, 3e4)
    assert not streams.values(Topic.DEAD_LETTERS)
    return streams.episodes


@pytest.mark.parametrize("tracer", TRACERS)
def test_under_the_runner_its_last_word_counts_when_trusted(tracer: str) -> None:
    """Two emitted, one for the last answer, one returned: the returned one is the attempt's, the linked one the
    call's."""
    (episode,) = trusting(recorded(tracer, "runner"))
    assert (episode.reward, [reward.name for reward in episode.rewards]) == (0.5, ["agent", "agent"])
    assert [[one.value for one in call.rewards] for call in episode.calls] == [[], [], [0.125]]
    assert episode.num_unproved_spans == 0


@pytest.mark.parametrize("tracer", TRACERS)
def test_under_the_runner_nothing_counts_by_default(tracer: str) -> None:
    """What was said is counted as said."""
    (episode,) = episodes_of(recorded(tracer, "runner"))
    assert (episode.reward, episode.rewards, episode.num_unauthorised_rewards) == (None, (), 3)
    assert not any(call.rewards for call in episode.calls)


@pytest.mark.parametrize("tracer", TRACERS)
def test_by_itself_each_rollout_is_one_episode_with_its_reward(tracer: str) -> None:
    """Its calls, and its spans in several traces, under the key of its `ro-` id, which its answers' ids carry."""
    episodes = trusting(recorded(tracer, "captured"))
    assert [(len(episode.calls), episode.reward) for episode in episodes] == [(3, 0.5), (3, 0.5)]
    for episode in episodes:
        assert {key_in(call.call_id) for call in episode.calls} == {episode.episode_id}
        assert [one.value for one in episode.calls[-1].rewards] == [0.125]


@pytest.mark.parametrize("way", ["runner", "captured"])
def test_its_calls_have_the_spans_that_agentops_made(way: str) -> None:
    """By the answer's id; the other tracer makes none."""
    for tracer, rung in zip(TRACERS, ("response_id", "none"), strict=True):
        joined = {call.joined_by for episode in trusting(recorded(tracer, way)) for call in episode.calls}
        assert joined == {rung}
