"""The recipes that have a name: data only."""

from __future__ import annotations

from collections.abc import Mapping

from .recipe import Recipe

__all__ = ["DEFAULT", "RECIPES"]

DEFAULT = "rloo_clip"
RECIPES: Mapping[str, Recipe] = {
    # Leave-one-out as RLOO has it (arXiv:2402.14740), a loss by token with DAPO's bounds (arXiv:2503.14476) and the
    # dual clip (arXiv:1912.09729), against the sampler's own logprobs.
    DEFAULT: Recipe(baseline="leave_one_out", high=0.28, dual=3.0),
}
