"""Leave-one-out over peers, by hand and by property."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tracegrad.trainer.algorithm import baseline
from tracegrad.trainer.algorithm.baseline import length_weighted, mean, none, running_mean


def leave_one_out(rollouts: Sequence[str], returns: Sequence[float]) -> list[float]:
    """Lengths do not matter to it."""
    return baseline.leave_one_out(rollouts, returns, [1] * len(returns))


def test_the_others_by_hand() -> None:
    """Returns 1, 0 and .5 of 1, 2 and 5 tokens: 0, the mean .5, and (1 * 1 + 5 * .5) / 8 = 3.5 / 8."""
    given = ["r0", "r1", "r2"], [1.0, 0.0, 0.5], [1, 2, 5]
    assert none(*given) == [0.0] * 3
    assert mean(*given) == [0.5] * 3
    assert length_weighted(*given) == [3.5 / 8] * 3
    assert length_weighted(["r0", "r1"], [1.0, 0.0], [0, 0]) == [0.5] * 2


def test_a_rollout_counts_once_in_the_means() -> None:
    """r1 failed in three turns; the mean is of 1 and 0."""
    given = ["r0", "r1", "r1", "r1"], [1.0, 0.0, 0.0, 0.0], [3, 1, 1, 1]
    assert (mean(*given)[0], length_weighted(*given)[0]) == (0.5, 0.75)


def test_running_mean_by_hand() -> None:
    """The first batch's mean, then .9 of it and .1 of the next."""
    first = running_mean(None, ["r0", "r1"], [1.0, 0.0], 0.9)
    assert first == 0.5
    assert running_mean(first, ["r0"], [1.0], 0.9) == pytest.approx(0.55)


def test_baseline_by_hand() -> None:
    """Of 1, 0 and 0.5: mean(0, 0.5), mean(1, 0.5), mean(1, 0)."""
    assert leave_one_out(["r0", "r1", "r2"], [1.0, 0.0, 0.5]) == pytest.approx([0.25, 0.75, 0.5])


def test_turn_without_peers_is_its_own_baseline() -> None:
    """One rollout alone says nothing about itself."""
    assert leave_one_out(["r0"], [5.0]) == [5.0]
    assert leave_one_out(["r0", "r0"], [5.0, 1.0]) == [5.0, 1.0]


def test_turns_of_the_same_rollout_are_left_out_together() -> None:
    """r0's second turn shares its outcome: r0 is compared with 0.25, not with mean(1, 0.25)."""
    assert leave_one_out(["r0", "r0", "r1"], [1.0, 1.0, 0.25]) == [0.25, 0.25, 1.0]


def test_a_rollout_counts_once_however_many_turns_it_has() -> None:
    """r0 is compared with mean(0, 0.9), not with the three turns that r1 took to fail."""
    assert leave_one_out(["r0", "r1", "r1", "r1", "r2"], [1.0, 0.0, 0.0, 0.0, 0.9])[0] == 0.45


def test_shift_of_all_returns_shifts_the_baseline() -> None:
    """A constant added to every return cancels in the advantage."""
    rng = random.Random(1)
    rollouts = [f"r{i}" for i in range(8)]
    returns = [rng.uniform(-1, 2) for _ in rollouts]
    shifted = leave_one_out(rollouts, [value + 3.25 for value in returns])
    assert shifted == pytest.approx([value + 3.25 for value in leave_one_out(rollouts, returns)], abs=1e-12)


def test_advantages_of_one_turn_a_rollout_sum_to_zero() -> None:
    """sum_i (R_i - mean of the others) = 0."""
    returns = [0.0, 1.0, 1.5, 2.0, 0.5]
    assert sum(returns) == pytest.approx(sum(leave_one_out(list("abcde"), returns)), abs=1e-12)
