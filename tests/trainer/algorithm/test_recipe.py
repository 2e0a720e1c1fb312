"""Recipes as records: what the settings may say of them, and what is refused."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.algorithm.aggregation import AGGREGATIONS
from tracegrad.trainer.algorithm.baseline import BASELINES
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.algorithm.scale import SCALES
from tracegrad.trainer.algorithm.surrogate import SURROGATES
from tracegrad.trainer.config import AlgorithmConfig

pytestmark = pytest.mark.torch

TABLES: dict[str, Mapping[str, Any]] = {
    "baseline": BASELINES,
    "scale": SCALES,
    "surrogate": SURROGATES,
    "aggregation": AGGREGATIONS,
}


@pytest.mark.parametrize("axis", TABLES)
def test_the_settings_offer_every_name_of_an_axis(axis: str) -> None:
    """The names are told twice: in the type, which the command line reads without torch, and in the table."""
    names = [name for part in typing.get_args(Recipe.kinds()[axis]) for name in typing.get_args(part) or [part]]
    assert sorted(name for name in names if isinstance(name, str)) == sorted(TABLES[axis])


def test_keys_override_what_the_recipe_says() -> None:
    """And say nothing where they are left out."""
    assert AlgorithmConfig().resolve() == RECIPES[DEFAULT]
    changed = AlgorithmConfig(high=0.5, level="row").resolve()
    assert (changed.high, changed.level, changed.dual) == (0.5, "row", 3.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"recipe": "rlo_clip"}, "recipe: no recipe 'rlo_clip'; did you mean 'rloo_clip'"),
        ({"dual": 0.5}, "dual: expected more than 1, got 0.5"),
        ({"low": 3.0}, "low: expected at most 1, got 3"),
    ],
    ids=["no such name", "a key's bound", "another key's bound"],
)
def test_what_cannot_work_is_refused_with_its_key(keys: dict[str, Any], message: str) -> None:
    """At load."""
    with pytest.raises(ConfigurationError, match=message):
        AlgorithmConfig(**keys)
