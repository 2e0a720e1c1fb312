"""What a held-out pass was worth: worked by hand, and by counting all cases."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.make import RUN_HASH, Streams, call, closed, event, reward, rollout
from tests.versions import OTHER_RUN, RUN, sampled_by
from tracegrad.producers.tasks.score import Score, interval, pass_at, score_of, version_shares, wilson
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.held_out import HeldOutScore
from tracegrad.schemas.topics import Topic


@pytest.mark.parametrize(
    ("num_samples", "num_passed", "k", "expected"),
    [
        (1, 1, 1, 1.0),
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),
        (4, 2, 2, 5 / 6),
        (5, 2, 3, 9 / 10),
        (8, 0, 8, 0.0),
        (8, 1, 8, 1.0),
        (200, 3, 100, 1 - (100 * 99 * 98) / (200 * 199 * 198)),
    ],
)
def test_pass_at_k_by_hand(num_samples: int, num_passed: int, k: int, expected: float) -> None:
    """1 - C(n - c, k) / C(n, k): of four samples of which one passes, half of all pairs hold it."""
    assert pass_at(num_samples, num_passed, k) == pytest.approx(expected, abs=1e-15)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_that_hold_one(num_samples: int, data: st.DataObject) -> None:
    """Which is why it has no bias: each subset of k is a fair draw of k samples."""
    num_passed = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(1, num_samples))
    subsets = list(itertools.combinations([index < num_passed for index in range(num_samples)], k))
    assert pass_at(num_samples, num_passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_wilson_interval_by_hand() -> None:
    """Known values: 0 of 10 and 5 of 10 (z = 1.96)."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


def test_the_interval_is_normal_where_rewards_are_no_shares() -> None:
    """Means 0, .5, 1 of three tasks: mean .5, std .5, so .5 +- 1.96 * .5 / sqrt 3."""
    assert interval([0.0, 0.5, 1.0]) == pytest.approx((0.5 - 0.56579, 0.5 + 0.56579), abs=1e-4)
    assert interval([0.0, 1.0]) == wilson(1, 2)


def scores(*rewards: float | None, versions: dict[int, float] | None = None) -> list[Score]:
    """Of the samples of a task."""
    return [Score(reward, "" if reward is not None else "unscored", versions or {3: 1.0}) for reward in rewards]


def shares(made: HeldOutScore) -> dict[int, float]:
    """Version -> its share."""
    return {one.version: one.share for one in made.versions}


def test_a_pass_by_hand() -> None:
    """Three tasks of four samples: 1 of 4, 2 of 3 (one unscored), none scored, which is left out."""
    made = score_of([scores(1.0, 0.0, 0.0, 0.0), scores(1.0, 1.0, None, 0.0), scores(None, None, None, None)], 4)
    assert made.mean == pytest.approx((1 / 4 + 2 / 3) / 2)
    assert made.num_scored == 2
    # pass@2: 1/2, and 1 - C(1, 2) / C(3, 2) = 1; pass@4 is of the first task alone, which has four.
    expected = {1: (1 / 4 + 2 / 3) / 2, 2: (1 / 2 + 1) / 2, 4: 1.0}
    assert {one.k: one.share for one in made.pass_at} == pytest.approx(expected)
    assert shares(made) == pytest.approx({3: 1.0}) and made.version == 3


def test_a_pass_without_a_reward_is_no_score() -> None:
    """Nor of any version."""
    made = score_of([scores(None), []], 1)
    assert (made.mean, made.low, made.num_scored, made.versions, made.version) == (None, None, 0, (), None)


def test_the_mean_is_a_score_of_the_versions_that_sampled_it() -> None:
    """Each task counts alike, each sample within it, each token within a sample; of equal shares the older version."""
    tasks = [scores(1.0, versions={7: 0.5, 9: 0.5}), scores(0.0, versions={7: 1.0}), scores(0.0, versions={9: 1.0})]
    made = score_of(tasks, 1)
    assert shares(made) == pytest.approx({7: 0.5, 9: 0.5})
    assert made.version == 7
    made = score_of([*tasks, scores(None, versions={1: 1.0})], 1)
    assert set(shares(made)) == {7, 9}, "who is not scored has no part in the mean"


@given(st.lists(st.lists(st.sampled_from([0.0, 0.2, 1.0, None]), max_size=3), max_size=6), st.integers(0, 9))
def test_the_order_in_which_samples_come_does_not_matter(rewards: list[list[float | None]], seed: int) -> None:
    """But for that of the tasks, which is the file's: the same records after a restart."""
    tasks = [[Score(one, "", {index % 2: 0.3, 5: 0.7}) for one in task] for index, task in enumerate(rewards)]
    made = score_of(tasks, 3)
    shuffled = [random.Random(seed).sample(task, len(task)) for task in tasks]
    assert score_of(shuffled, 3) == made
    assert sum(shares(made).values()) == pytest.approx(1.0 if made.num_scored else 0.0)


def test_an_episode_says_which_version_sampled_how_much_of_it() -> None:
    """By tokens of the run's own policy: a call of another policy, or another run's version, is no part of it."""
    streams, own = Streams(), rollout(1)
    calls = [
        call("a", own, [1], [2, 3, 4, 5], versions=(sampled_by(3), sampled_by(4, start=3))),
        call("b", own, [1], [2, 3], versions=(sampled_by(4),), parent_call_id=None),
        call("c", own, [1], [2] * 9, versions=(sampled_by(8),), policy="other"),
        call("d", own, [1], [2] * 9, versions=(sampled_by(8, run=OTHER_RUN),)),
    ]
    streams.feed(event(own), *calls, closed(own, calls), reward(own))
    (value,) = streams.values(Topic.EPISODES)
    episode = EPISODES.decode(value)
    assert version_shares(episode, "policy", RUN) == {3: 3 / 6, 4: 3 / 6}
    assert version_shares(episode, "policy", RUN_HASH) == {}
