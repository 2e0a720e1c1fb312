"""The guard: no rollback without a change, one soon after a drop, to a version that is still there."""

from __future__ import annotations

import os
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from tests.trainer.material import segment, summary, turn
from tests.versions import OTHER_RUN, RUN, sampled_by
from tracegrad.schemas.records.training import RatingDrop
from tracegrad.trainer.batch.groups import Group
from tracegrad.trainer.config import AlarmsConfig
from tracegrad.trainer.rating_drop import VersionRatings, held_from, judge_ratings, restarted_at, scores_of

pytestmark = pytest.mark.torch

RUNS = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 30
Scores = list[tuple[int, float]]


def batches(chance: random.Random, rates: list[float]) -> list[Scores]:
    """Of 32 thumbs a step, each for one of the versions 2 to 6 before it; `rates`: how many are up, by version."""
    made = []
    for step in range(1, len(rates)):
        versions = [max(0, step - chance.randint(2, 6)) for _ in range(32)]
        made.append([(version, float(chance.random() < rates[version])) for version in versions])
    return made


def first(made: list[Scores], size: int) -> tuple[int, RatingDrop] | None:
    """Which batch is the first that has a run rolled back, and why."""
    state = VersionRatings()
    for number, scores in enumerate(made):
        state, worse = judge_ratings(state, scores, size)
        if worse is not None:
            return number, worse
    return None


@pytest.mark.parametrize("rate", [0.05, 0.7])
def test_of_runs_without_a_change_at_most_one_in_twenty_is_rolled_back(rate: float) -> None:
    """HYPOTHESIS_PROFILE=long: of 2,000; the bound for so few is one that chance passes once in a thousand."""
    found = sum(first(batches(random.Random(f"aa-{run}"), [rate] * 100), 300) is not None for run in range(RUNS))
    assert found <= (RUNS / 20 if RUNS > 1000 else 7)


@pytest.mark.parametrize(("after", "most"), [(0.4, 13), (0.0, 8)])
def test_a_drop_is_found_and_undone(after: float, most: int) -> None:
    """Versions from the 60th on are rated worse: within so many batches, back to one before them. In one of twenty
    runs a false alarm comes first."""
    found = [first(batches(random.Random(f"drop-{run}"), [0.8] * 60 + [after] * 40), 500) for run in range(10)]
    right = [one for one in found if one is not None and one[0] >= 60]
    assert len(right) >= 9
    for number, worse in right:
        assert number <= 60 + 2 + most and 40 <= worse.before.to_version < 60
        assert worse.before.num >= 500 and worse.newest.num >= 500
        assert worse.before.to_version < worse.newest.from_version
        assert 0 < worse.drop_least < worse.before.mean - worse.newest.mean


@pytest.mark.parametrize("value", [0.1, 0.7, 0.9, -1 / 3])
def test_equal_ratings_are_no_reason(value: float) -> None:
    """Whatever rounding makes of the sums of windows that differ in size."""
    sampled = batches(random.Random("equal"), [0.0] * 150)
    made = [[(version, value) for version, _ in scores] for scores in sampled]
    assert first(made, 500) is None
    assert first([*made[:100], *([(version, value - 0.1) for version, value in scores] for scores in made[100:])], 500)


def test_a_rise_is_no_reason() -> None:
    """One-sided."""
    assert first(batches(random.Random("rise"), [0.2] * 50 + [0.9] * 50), 300) is None


def test_nothing_is_judged_before_two_windows_are_full_nor_without_a_size() -> None:
    """Whatever they say."""
    made = [[(0, 1.0)] * 499, [(1, 0.0)] * 500]
    assert first(made, 500) is None
    assert first([*made, [(0, 1.0)]], 0) is None
    assert first([*made, [(0, 1.0)]], 500) is not None


def test_who_trains_on_captured_traffic_is_guarded_unless_it_says_otherwise() -> None:
    """The members of a group of tasks are no independent ratings."""
    assert [AlarmsConfig().window(is_captured=captured) for captured in (True, False)] == [500, 0]
    assert AlarmsConfig(rollback_window=0).window(is_captured=True) == 0


def test_after_a_rollback_older_versions_count_no_more() -> None:
    """What they sampled arrives late; the looks that were spent stay spent."""
    state = VersionRatings()
    for scores in ([(0, 1.0)] * 5, [(1, 0.0)] * 5):
        state, worse = judge_ratings(state, scores, 5)
    assert worse is not None and state.num_looks == 1
    state = restarted_at(state, 2)
    state, worse = judge_ratings(state, [(1, 0.0)] * 9 + [(2, 1.0)], 5)
    assert worse is None and {version: one.num for version, one in state.scored.items()} == {2: 1}
    assert state.num_looks == 1


@given(st.integers(0, 999), st.integers(1, 90), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_a_checkpoint_between_two_batches_changes_no_decision(
    seed: int, size: int, before: float, after: float
) -> None:
    """And the version that a rollback goes to was held ever since there was one to go to."""
    state = VersionRatings()
    for scores in batches(random.Random(seed), [before] * 20 + [after] * 20):
        held = held_from(state, size)
        found, worse = judge_ratings(state, scores, size)
        again = msgspec.json.decode(msgspec.json.encode(state), type=VersionRatings)
        assert judge_ratings(again, scores, size) == (found, worse)
        assert held <= held_from(found, size)
        if worse is not None:
            assert held <= held_from(found, size) == worse.before.to_version
        state = found


def test_a_conversation_counts_for_the_newest_version_that_sampled_it() -> None:
    """Of its own run; what nobody rated, and what has no tokens, counts for none."""
    other = sampled_by(9, run=OTHER_RUN)
    mixed = [turn(1, 3, call="a", version=3), turn(3, 5, call="b", version=5), turn(5, 7, call="c", version=4)]
    groups = [
        Group(summary("g0", ["r0"], reward=0.25), (segment("r0", mixed),)),
        Group(summary("g1", ["r1"], reward=1.0), (segment("r1", [turn(1, 3, version=other), turn(3, 5, call="b")]),)),
        Group(summary("g2", ["r2"], reward=None), (segment("r2", [turn(1, 3)]),)),
        Group(summary("g3", ["r3"], reward=1.0, excluded="no_calls"), ()),
    ]
    assert [*scores_of(groups, RUN)] == [(5, 0.25), (0, 1.0)]
