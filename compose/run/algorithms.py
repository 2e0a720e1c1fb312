"""The recipes that have a name, in words: for `tracegrad recipes`, and for docs/algorithms.md, made of the same.

In: `RECIPES`, data of the trainer that needs no torch. Out: text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import RECIPES


def recipe_facts(name: str) -> dict[str, str]:
    """What there is to tell of a recipe, by topic."""
    known = RECIPES[name]
    told = {
        "recipe": name,
        "formula": known.formula,
        "axes": ", ".join(f"{axis} = {spelt(value)}" for axis, value in axes_of(known.recipe)),
        "credit": f'[credit] strategy = "{known.credit}"' if known.credit else "",
        "needs": ", ".join(sorted(known.recipe.needs)),
        "source": known.source,
        "differs": known.differs,
    }
    return {key: value for key, value in told.items() if value}


def axes_of(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """The axes that every recipe has, and what else it says."""
    always = ("baseline", "scale", "level", "surrogate", "low", "high", "aggregation")
    plain = Recipe()
    for axis in Recipe.__struct_fields__:
        value = getattr(recipe, axis)
        is_of_ratio = axis in ("level", "low", "high")
        if (axis in always and not (is_of_ratio and recipe.surrogate == "reinforce")) or value != getattr(plain, axis):
            yield axis, value


def spelt(value: Any) -> str:
    """As the settings file has it."""
    return msgspec.json.encode(value).decode()
