"""Leave-one-out over peers, by hand and by property."""

from __future__ import annotations

import random

import pytest

from tests.trainer.material import segment, turn
from tracegrad.trainer.algorithm.baseline import group_advantages, leave_one_out


def test_leave_one_out_by_hand() -> None:
    """1 - mean(0, 0.5) = 0.75; 0 - mean(1, 0.5) = -0.75; 0.5 - mean(1, 0) = 0."""
    assert leave_one_out(["r0", "r1", "r2"], [1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])


def test_equal_returns_give_exactly_zero() -> None:
    """0.1 summed seven times rounds; a group without spread must still cost nothing."""
    for size in range(2, 20):
        assert leave_one_out([str(i) for i in range(size)], [0.1] * size) == [0.0] * size


def test_turn_without_peers_gets_zero() -> None:
    """One rollout alone says nothing about itself."""
    assert leave_one_out(["r0"], [5.0]) == [0.0]
    assert leave_one_out(["r0", "r0"], [5.0, 1.0]) == [0.0, 0.0]


def test_turns_of_the_same_rollout_are_left_out_together() -> None:
    """r0's second turn shares its outcome: r0 gets 1 - 0.25, not 1 - mean(1, 0.25)."""
    assert leave_one_out(["r0", "r0", "r1"], [1.0, 1.0, 0.25]) == pytest.approx([0.75, 0.75, -0.75])


def test_scale_divides_by_the_population_std() -> None:
    """Returns 1 and 0: advantages 1 and -1, std 0.5, so 2 and -2."""
    assert leave_one_out(["r0", "r1"], [1.0, 0.0], scale=True) == pytest.approx([2.0, -2.0])
    assert leave_one_out(["r0", "r1"], [0.3, 0.3], scale=True) == [0.0, 0.0]


def test_shift_of_all_returns_changes_nothing() -> None:
    """A constant added to every return cancels in the baseline."""
    rng = random.Random(1)
    rollouts = [f"r{i}" for i in range(8)]
    returns = [rng.uniform(-1, 2) for _ in rollouts]
    shifted = leave_one_out(rollouts, [value + 3.25 for value in returns])
    assert shifted == pytest.approx(leave_one_out(rollouts, returns), abs=1e-12)


def test_advantages_of_one_turn_a_rollout_sum_to_zero() -> None:
    """sum_i (R_i - mean of the others) = 0."""
    returns = [0.0, 1.0, 1.5, 2.0, 0.5]
    assert sum(leave_one_out(list("abcde"), returns)) == pytest.approx(0.0, abs=1e-12)


def test_permutation_of_rows_changes_no_bit() -> None:
    """Sums are exact, so order cannot matter."""
    rng = random.Random(2)
    rows = [segment(f"r{i}", [turn(2, 5, returned=rng.uniform(-1, 2))]) for i in range(8)]
    expected = group_advantages(rows)
    for _ in range(10):
        rng.shuffle(rows)
        assert group_advantages(rows) == expected


def test_turns_are_compared_with_their_peers_only() -> None:
    """Two turns each: first ones 1.5 and 0.5, second ones 1 and 0; the third turn of r1 has no peer."""
    rows = [
        segment("r0", [turn(1, 2, call="a", returned=1.5, peers="0"), turn(3, 4, call="b", returned=1.0, peers="1")]),
        segment(
            "r1",
            [
                turn(1, 2, call="a", returned=0.5, peers="0"),
                turn(3, 4, call="b", returned=0.0, peers="1"),
                turn(5, 6, call="c", returned=7.0, peers="2"),
            ],
        ),
    ]
    assert group_advantages(rows) == {
        ("r0", "a"): 1.0,
        ("r1", "a"): -1.0,
        ("r0", "b"): 1.0,
        ("r1", "b"): -1.0,
        ("r1", "c"): 0.0,
    }


def test_call_in_two_rows_counts_once() -> None:
    """A shared prefix repeats a call with loss_mask 0; the baseline must not see it twice."""
    shared = turn(1, 3, call="a", returned=1.0)
    rows = [
        segment("r0", [shared]),
        segment("r0", [shared], mask=[0] * 8, number=1),
        segment("r1", [turn(1, 3, call="a", returned=0.5)]),
        segment("r2", [turn(1, 3, call="a", returned=0.0)]),
    ]
    assert group_advantages(rows)["r1", "a"] == 0.0


def test_masked_call_is_a_peer() -> None:
    """A truncated call leaves the loss, but what it was worth still counts in the others' baseline."""
    rows = [segment("r0", [turn(1, 3, returned=1.0)]), segment("r1", [turn(1, 3, returned=0.0)], mask=[0] * 8)]
    assert group_advantages(rows)["r0", "call-0"] == 1.0


def test_weight_multiplies_the_advantage() -> None:
    """Credit's weight is the turn's share in the loss."""
    rows = [segment("r0", [turn(1, 3, returned=1.0, weight=0.5)]), segment("r1", [turn(1, 3, returned=0.0)])]
    assert group_advantages(rows) == {("r0", "call-0"): 0.5, ("r1", "call-0"): -1.0}
