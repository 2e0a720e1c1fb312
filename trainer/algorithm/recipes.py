"""The recipes that have a name: what recipes.toml says. `tracegrad recipes` and docs/algorithms.md are made of it.

In: the file beside this one, a table a recipe: the axes on which it is not `Recipe()`, as a settings file would spell
them, its formula, its source, and where ours differs. Out: `RECIPES`. Failure: ConfigurationError, msgspec's or
TOML's own, at import: a fault of ours.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .recipe import Recipe

DEFAULT = "rloo_clip"


class NamedRecipe(NamedTuple):
    """A recipe and where it comes from."""

    recipe: Recipe
    formula: str
    """What is particular of it: A, f, kl as recipe.py has them."""
    source: str
    differs: str = ""
    """Where ours is not the source's."""
    credit: str = ""
    """The strategy of `[credit]` that it is of; empty: any."""


def _read() -> dict[str, NamedRecipe]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    words = {name: {key: table.pop(key, "") for key in NamedRecipe._fields[1:]} for name, table in tables.items()}
    return {name: NamedRecipe(Recipe(**table), **words[name]) for name, table in tables.items()}


RECIPES: Mapping[str, NamedRecipe] = _read()
