"""Why a rollout is excluded: one rule, whoever asks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.credit.test_credit import feed, member, turns
from tests.streams.make import RUN_HASH, TOPICS, config
from tracegrad.producers.tasks.run_state import RunState
from tracegrad.schemas.records.episodes import EPISODES, EpisodeCall, why_excluded
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.streams.credit.fold import Credit

OURS = turns(0.0)
FOREIGN = tuple(msgspec.structs.replace(call, policy="critic") for call in OURS)
REWARDS = (None, float("nan"), float("inf"), 1e13, 0.0, -1.0, 1.0)


@given(st.sampled_from(RolloutState), st.sampled_from(REWARDS), st.sampled_from([(), OURS, FOREIGN, FOREIGN + OURS]))
def test_admission_and_credit_tell_one_reason(
    state: RolloutState, reward: float | None, calls: tuple[EpisodeCall, ...]
) -> None:
    """tasks gives a place back for just the rollouts that credit leaves out, and says the same of each."""
    episode = EPISODES.decode(EPISODES.encode(member(0, size=1, state=state, reward=reward, calls=calls)))
    reason = why_excluded(episode, "policy")
    admission = RunState(RUN_HASH, "policy")
    admission.fold(episode)
    (emission,) = feed(Credit(config(), TOPICS), episode)
    summary, rows = decode_group(emission.outputs[0].value)
    assert summary.members[0].excluded == reason
    assert [told.split(" (")[0] for told in admission.exclusions] == [reason] * bool(reason)
    assert bool(rows) is not bool(reason)


@pytest.mark.parametrize(
    ("state", "calls", "reward", "reason"),
    [
        (RolloutState.SUCCEEDED, (), None, "no_calls"),
        (RolloutState.SUCCEEDED, FOREIGN, None, "no_calls"),
        (RolloutState.SUCCEEDED, OURS, None, "unscored"),
        (RolloutState.FAILED, OURS, 1e13, "unscored"),
        (RolloutState.ABORTED, (), None, "aborted"),
        (RolloutState.STARTED, (), 1.0, "unknown_state"),
        (RolloutState.TRUNCATED, OURS, 0.0, ""),
    ],
)
def test_the_reason_nearest_to_the_cause_is_told(
    state: RolloutState, calls: tuple[EpisodeCall, ...], reward: float | None, reason: str
) -> None:
    """Without a call there was nothing to score for this policy, so a missing score is no news."""
    assert why_excluded(member(0, state=state, calls=calls, reward=reward), "policy") == reason
