"""Denominators: rollouts of 2, 4 and 0 trained tokens, by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tracegrad.trainer.algorithm.aggregation import constant, group_mean, rollout_mean, token_mean

Aggregation = Callable[[Sequence[int], Sequence[str], int], list[float]]

GROUPS = ["g0", "g0", "g1"]


def test_denominators_by_hand() -> None:
    """1/N = 1/6; 1/(3*2), 1/(3*4); 1/(3*10); 1/(2*6): a rollout without trained tokens counts in R and weighs
    nothing."""
    assert token_mean([2, 4, 0], GROUPS, 10) == pytest.approx([1 / 6, 1 / 6, 0])
    assert rollout_mean([2, 4, 0], GROUPS, 10) == pytest.approx([1 / 6, 1 / 12, 0])
    assert group_mean([2, 4, 0], GROUPS, 10) == pytest.approx([1 / 12, 1 / 12, 0])
    assert constant([2, 4, 0], GROUPS, 10) == pytest.approx([1 / 30, 1 / 30, 0])


@pytest.mark.parametrize("aggregation", [token_mean, rollout_mean])
def test_weights_of_all_tokens_sum_to_the_share_of_rollouts_that_have_some(aggregation: Aggregation) -> None:
    """sum over r of n_r c_r: 1 by tokens, 2/3 by rollouts where one of three has none."""
    total = sum(n * c for n, c in zip([2, 4, 0], aggregation([2, 4, 0], GROUPS, 0), strict=True))
    assert total == pytest.approx(1.0 if aggregation is token_mean else 2 / 3)


@pytest.mark.parametrize("aggregation", [token_mean, rollout_mean, group_mean, constant])
def test_batch_without_trained_tokens_weighs_nothing(aggregation: Aggregation) -> None:
    """No division by zero."""
    assert (aggregation([0, 0], GROUPS[:2], 10), aggregation([], [], 10)) == ([0.0, 0.0], [])
