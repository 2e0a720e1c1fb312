"""Recipes as records: what the settings may say of them, and what is refused."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.algorithm.aggregation import AGGREGATIONS
from tracegrad.trainer.algorithm.baseline import BASELINES
from tracegrad.trainer.algorithm.correction import CORRECTIONS
from tracegrad.trainer.algorithm.form import Turns, loss, turn_advantages
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.algorithm.regulariser import KLS
from tracegrad.trainer.algorithm.scale import SCALES
from tracegrad.trainer.algorithm.surrogate import SURROGATES
from tracegrad.trainer.config import AlgorithmConfig

pytestmark = pytest.mark.torch

ELSEWHERE = {"baseline": ["running_mean"], "scale": ["batch_std", "whiten"], "correction": ["none"]}
"""What is no function of a set of peers, or nothing at all."""
TABLES: dict[str, Mapping[str, Any]] = {
    "baseline": BASELINES,
    "scale": SCALES,
    "surrogate": SURROGATES,
    "correction": CORRECTIONS,
    "kl": KLS,
    "aggregation": AGGREGATIONS,
}


@pytest.mark.parametrize("axis", TABLES)
def test_the_settings_offer_every_name_of_an_axis(axis: str) -> None:
    """The names are told twice: in the type, which the command line reads without torch, and in the table."""
    names = [name for part in typing.get_args(Recipe.kinds()[axis]) for name in typing.get_args(part) or [part]]
    assert sorted(name for name in names if isinstance(name, str)) == sorted([*TABLES[axis], *ELSEWHERE.get(axis, [])])


def test_keys_override_what_the_recipe_says() -> None:
    """And say nothing where they are left out."""
    assert AlgorithmConfig().resolve() == RECIPES[DEFAULT].recipe
    changed = AlgorithmConfig(high=0.5, level="row").resolve()
    assert (changed.high, changed.level, changed.dual) == (0.5, "row", 3.0)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_where_it_comes_from(name: str) -> None:
    """And can be named in the settings as it is."""
    assert AlgorithmConfig(recipe=name).resolve() == RECIPES[name].recipe
    assert RECIPES[name].formula and RECIPES[name].source


MINE = """
from tracegrad.trainer.algorithm.form import Turns, loss, turn_advantages
from tracegrad.trainer.algorithm.recipe import Recipe

def best_of_the_others(rollouts_P, returns_P, lengths_P):
    return [max(returns_P[:at] + returns_P[at + 1 :]) for at in range(len(returns_P))]

def hinge(ratios_N, advantages_N, logprobs_N, low, high, dual):
    return (ratios_N - 1.0) * advantages_N, ratios_N > 1.0 + high

recipe = Recipe(baseline=best_of_the_others, surrogate=hinge, high=0.5)
"""


def test_a_researchers_afternoon(tmp_path: Path) -> None:
    """An own baseline and an own surrogate in a file, no fork; a key of the settings overrides it still."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    recipe = AlgorithmConfig(recipe=f"{file}:recipe", aggregation="rollout_mean").resolve()
    assert (recipe.high, recipe.aggregation) == (0.5, "rollout_mean")
    turns = Turns(["g"] * 3, ["0"] * 3, ["a", "b", "c"], [1.0, 3.0, 2.0], [1, 1, 1])
    assert turn_advantages(recipe, turns)[0] == [-2.0, 1.0, -1.0]
    logprobs = torch.tensor([0.8, 0.4]).log().requires_grad_(True)
    half = torch.full((2,), 0.5)
    term = loss(recipe, logprobs_N=logprobs, sampler_logprobs_N=half.log(), advantages_N=torch.ones(2), weights_N=half)
    assert term.loss.item() == pytest.approx(-(0.6 - 0.2) / 2)
    assert term.clipped_N.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (MINE, "other", "expected a Recipe named 'other'"),
        ("import nowhere", "recipe", "cannot be run: No module named 'nowhere'"),
        ("recipe = ", "recipe", "cannot be run"),
    ],
    ids=["no such name", "an import that fails", "no Python"],
)
def test_a_file_that_gives_no_recipe_is_refused(text: str, name: str, message: str, tmp_path: Path) -> None:
    """With the key, where the trainer starts."""
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        AlgorithmConfig(recipe=f"{tmp_path}/mine.py:{name}").resolve()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"recipe": "rlo_clip"}, "recipe: no recipe 'rlo_clip'; did you mean 'rloo_clip'"),
        ({"dual": 0.5}, "dual: expected more than 1, got 0.5"),
        ({"low": 3.0}, "low: expected at most 1 with surrogate 'clip', got 3"),
        ({"recipe": "sapo", "high": 0.0}, "low, high: expected taus above 0"),
        ({"recipe": "dppo", "level": "row"}, "level: expected 'token' with surrogate 'dppo', got 'row'"),
        ({"correction": "tis"}, "correction: expected anchor 'old' with 'tis', got 'sampler'"),
        ({"beta": 0.1, "kl": "k1"}, "kl: expected k1 in the reward"),
        ({"recipe": "rloo", "kl": "k3"}, "kl: expected k1 in the reward"),
        ({"overlong": 5, "overlong_buffer": 6}, "overlong_buffer: expected at most overlong = 5, got 6"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(keys: dict[str, Any], message: str) -> None:
    """At load."""
    with pytest.raises(ConfigurationError, match=message):
        AlgorithmConfig(**keys)
