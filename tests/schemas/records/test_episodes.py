"""Why a rollout is excluded: one rule, whoever asks; prompts put together from the differences they were cut into."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prompts import rebuild_prompt
from tests.streams.credit.test_credit import feed, member, turns
from tests.streams.credit.test_segments import call
from tests.streams.make import RUN_HASH, TOPICS, config
from tracegrad.producers.tasks.admission_state import AdmissionState
from tracegrad.schemas.records.episodes import EPISODES, EpisodeCall, why_excluded
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.records.tokens import ids_from_bytes, ids_to_bytes
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.streams.credit.fold import Credit

OURS = turns(0.0)
FOREIGN = tuple(msgspec.structs.replace(call, policy="critic") for call in OURS)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
REWARDS = (None, float("nan"), float("inf"), 1e13, 0.0, -1.0, 1.0)


@given(st.sampled_from(RolloutState), st.sampled_from(REWARDS), st.sampled_from([(), OURS, FOREIGN, FOREIGN + OURS]))
def test_admission_and_credit_tell_one_reason(
    state: RolloutState, reward: float | None, calls: tuple[EpisodeCall, ...]
) -> None:
    """tasks gives a place back for just the rollouts that credit leaves out, and says the same of each."""
    episode = EPISODES.decode(EPISODES.encode(member(0, size=1, state=state, reward=reward, calls=calls)))
    reason = why_excluded(episode, "policy")
    admission = AdmissionState(RUN_HASH, "policy", ["engine-0"])
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


def test_an_episode_without_room_for_its_calls_is_told_from_one_that_made_none() -> None:
    """Nobody should look for an agent that spoke to another endpoint."""
    assert why_excluded(member(0, calls=(), calls_omitted="too_large", reward=None), "policy") == "too_large"
    assert (
        why_excluded(member(0, calls=(), calls_omitted="too_large", state=RolloutState.ABORTED), "policy") == "aborted"
    )


@given(IDS, IDS, IDS, st.data())
def test_a_difference_and_its_parent_give_the_prompt(
    prompt: list[int], sampled: list[int], suffix: list[int], data: st.DataObject
) -> None:
    """At whatever length the two part."""
    first = call("a", prompt, sampled)
    before = [*prompt, *sampled]
    shared = data.draw(st.integers(0, len(before)))
    second = call("b", suffix, [1], parent_call_id="a", shared_tokens=shared)
    rebuilt = rebuild_prompt(second, {"a": first.suffix_ids + first.sampled_ids})
    assert rebuilt is not None
    assert ids_from_bytes(rebuilt).tolist() == [*before[:shared], *suffix]


def test_a_broken_chain_gives_nothing() -> None:
    """An unknown parent, more shared than it has, a share of no parent, or half a token."""
    full = {"a": ids_to_bytes([1, 2])}
    for broken in (
        call("b", [3], [4], parent_call_id="gone", shared_tokens=1),
        call("b", [3], [4], parent_call_id="a", shared_tokens=3),
        call("b", [3], [4], parent_call_id="a", shared_tokens=-1),
        call("b", [3], [4], shared_tokens=1),
        msgspec.structs.replace(call("b", [3], [4]), suffix_ids=b"123"),
        msgspec.structs.replace(call("b", [3], [4]), sampled_ids=b"123"),
    ):
        assert rebuild_prompt(broken, full) is None
