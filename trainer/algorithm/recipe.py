"""A recipe: a name on each axis, and the numbers that belong to it.

    A_i = (R_i - b_i) / s                                                 baseline.py, scale.py
    L   = - sum over trained tokens t of  c_t * f(rho_t, A_t)             aggregation.py, surrogate.py, level.py

In: names and numbers. Out: a frozen record, which `form.py` puts to work. Invariant: bounds stand in the types and the
checks below, so that a recipe that exists can be computed; no torch, for the command line reads it. A name may be a
function instead, of the form that its axis' table tells: the way of a user's file.
Failure: ConfigurationError that begins with the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from msgspec import Meta

from tracegrad.schemas.section import Count, Section

__all__ = ["Function", "Recipe"]

Function = Callable[..., Any]


class Recipe(Section, frozen=True, kw_only=True):
    """A point on each axis. Example: Recipe(baseline="leave_one_out", aggregation="rollout_mean")."""

    baseline: Literal["leave_one_out"] | Function = "leave_one_out"
    """What a return is compared with."""
    scale: Literal["none", "std", "grpo"] | Function = "none"
    """What advantages are divided by: `none` (with leave-one-out: RLOO), `grpo` (then exactly GRPO), or `std`, the
    population std of the peers' returns, which is GRPO * (k / (k - 1))^1.5."""
    anchor: Literal["sampler", "old"] = "sampler"
    """What the policy's probability is divided by in the ratio: the sampler's (`bypass`), or the policy's own before
    the batch's first update."""
    level: Literal["token", "turn", "row", "rollout"] = "token"
    """Whose ratio it is: each token's, or the geometric mean over the trained tokens of its turn, row or rollout."""
    surrogate: Literal["clip"] | Function = "clip"
    """What is maximised for each token."""
    low: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """`clip`: the ratio may fall to 1 - low."""
    high: Annotated[float, Meta(ge=0)] = 0.2
    """`clip`: the ratio may rise to 1 + high."""
    dual: Annotated[float, Meta(gt=1)] | None = None
    """`clip`: greatest weight of a token with a negative advantage (dual clip, arXiv:1912.09729)."""
    aggregation: Literal["token_mean", "rollout_mean", "constant"] | Function = "token_mean"
    """What one token weighs in the loss: `token_mean` 1/N, `rollout_mean` 1/(R n_r), `constant` 1/(R L)."""
    length: Count = 1024
    """L of `constant`: the greatest length of a rollout, say."""

    @property
    def units(self) -> str | None:
        """By what the loss wants the tokens numbered: None, `turn`, `row` or `rollout`."""
        return None if self.level == "token" else self.level
