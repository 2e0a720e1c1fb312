"""How much of what another policy sampled still counts: the effective sample size of importance weights.

    ess(w) = (sum of w_t)^2 / (n * sum of w_t^2)        w_t = pi(t) / mu(t), log w within +-20; n trained tokens

(Kish 1965; Kong 1992.) Between 1 / n, one token carries all, and 1, all weigh alike. It knows no common factor: where
pi finds all tokens half as likely as mu did, it is 1; `kl_sampler` and `clip_fraction` tell of that. Of a row it is
over the row's trained tokens, of a group over those of all its rows together, so that a row of few tokens, whose least
value is 1 / n, does not decide for it. Plain numbers. Tensor suffix: N trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["described", "ess"]

_MAX_LOG_WEIGHT = 20.0
"""As the loss bounds a ratio (algorithm/level.py): exp of much more is infinite."""


def ess(log_weights_N: npt.NDArray[np.float64]) -> float:
    """Of N tokens, 1 of none; NaN where the policy gave a token no number: the step is to say so."""
    if not log_weights_N.size:
        return 1.0
    log_weights_N = log_weights_N.clip(-_MAX_LOG_WEIGHT, _MAX_LOG_WEIGHT)
    weights_N = np.exp(log_weights_N - log_weights_N.max())  # a common factor changes nothing
    return float(weights_N.sum() ** 2 / (weights_N.size * np.square(weights_N).sum()))


def described(rows: Sequence[float]) -> dict[str, float]:
    """Of the rows of a batch: mean, least and quantiles; empty without a number."""
    finite = np.array([value for value in rows if np.isfinite(value)])
    if not finite.size:
        return {}
    p10, p50, p90 = np.quantile(finite, (0.1, 0.5, 0.9))
    told = {"mean": finite.mean(), "min": finite.min(), "p10": p10, "p50": p50, "p90": p90}
    return {name: float(value) for name, value in told.items()}
