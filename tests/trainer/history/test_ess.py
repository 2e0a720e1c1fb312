"""The effective sample size of importance weights, by hand and by its properties."""

from __future__ import annotations

import math
import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tracegrad.trainer.history.offline import described, ess

Doubles = npt.NDArray[np.float64]
LOG_WEIGHTS = arrays(np.float64, st.integers(1, 40), elements=st.floats(-15, 15))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0], 1.0),
        ([2.0, 2.0], 1.0),
        ([3.0, 1.0], 16 / 20),  # (3 + 1)^2 / (2 (9 + 1))
        ([4.0, 1.0, 1.0], 36 / 54),  # (4 + 1 + 1)^2 / (3 (16 + 1 + 1))
        ([0.5], 1.0),
        ([], 1.0),
    ],
)
def test_by_hand(weights: list[float], expected: float) -> None:
    """(sum w)^2 / (n sum w^2)."""
    assert ess(np.log(np.array(weights))) == pytest.approx(expected, rel=1e-12)


@given(LOG_WEIGHTS)
def test_it_lies_between_one_token_and_all(log_weights_N: Doubles) -> None:
    """1/n to 1, whatever the weights."""
    assert 1 / log_weights_N.size - 1e-9 <= ess(log_weights_N) <= 1 + 1e-9


@given(LOG_WEIGHTS, st.floats(-4, 4), st.randoms())
def test_order_and_a_common_factor_change_nothing(log_weights_N: Doubles, shift: float, rng: random.Random) -> None:
    """As the docs say: a drift that all tokens share is not seen."""
    order = list(range(log_weights_N.size))
    rng.shuffle(order)
    assert ess(log_weights_N[order] + shift) == pytest.approx(ess(log_weights_N), rel=1e-6)


@given(LOG_WEIGHTS)
def test_tokens_that_come_twice_change_nothing(log_weights_N: Doubles) -> None:
    """It is a share."""
    assert ess(np.tile(log_weights_N, 2)) == pytest.approx(ess(log_weights_N), rel=1e-9)


def test_weights_beyond_float_are_bounded_as_the_loss_bounds_them() -> None:
    """e^900 is no number; e^20 leaves one token of three."""
    assert ess(np.array([900.0, 0.0, -900.0])) == pytest.approx(1 / 3, rel=1e-6)


def test_no_number_is_not_hidden() -> None:
    """A policy that gives NaN is the step's to report, not a small sample."""
    assert math.isnan(ess(np.array([0.0, math.nan])))
    assert described([math.nan]) == {}


def test_a_batch_is_told_by_mean_least_and_quantiles() -> None:
    """Of five rows, linear between order statistics."""
    told = described([0.2, 0.4, 0.6, 0.8, 1.0])
    assert told == pytest.approx({"mean": 0.6, "min": 0.2, "p10": 0.28, "p50": 0.6, "p90": 0.92})
