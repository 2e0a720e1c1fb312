"""Recipes as records: what the settings may say of them, and what is refused."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
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
from tracegrad.trainer.algorithm.trial import try_functions
from tracegrad.trainer.config import AlgorithmConfig

pytestmark = pytest.mark.torch

ELSEWHERE = {"baseline": ["critic", "running_mean"], "scale": ["batch_std", "whiten"], "correction": ["none"]}
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


MINE = (Path(__file__).parents[3] / "docs" / "training.md").read_text().split("```python\n")[1].split("```")[0]
"""The file that the docs show."""


def test_a_researchers_afternoon(tmp_path: Path) -> None:
    """An own baseline and an own surrogate in a file, no fork; a key of the settings overrides it still."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    recipe = AlgorithmConfig(recipe=f"{file}:recipe", aggregation="rollout_mean").resolve()
    try_functions(recipe)
    assert (recipe.high, recipe.aggregation) == (0.5, "rollout_mean")
    turns = Turns(["g"] * 3, ["0"] * 3, ["a", "b", "c"], [1.0, 3.0, 2.0], [1, 1, 1])
    assert turn_advantages(recipe, turns)[0] == [-2.0, 1.0, -1.0]
    logprobs = torch.tensor([0.6, 0.8]).log().requires_grad_(True)
    half = torch.full((2,), 0.5)
    term = loss(recipe, logprobs_N=logprobs, sampler_logprobs_N=half.log(), advantages_N=torch.ones(2), weights_N=half)
    # rho = 1.2 and 1.6: 1.2 - .04 and 1.6 - .36; the second is beyond 1.5.
    assert term.loss.item() == pytest.approx(-(1.16 + 1.24) / 2)
    assert term.clipped_N.tolist() == [False, True]
    (gradient,) = torch.autograd.grad(term.loss, logprobs)
    assert gradient.tolist() == pytest.approx([-(1.2 - 1.2 * 2 * 0.2) / 2, 0.0])


HEAD = "from tracegrad.trainer.algorithm.recipe import Recipe\n\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINE, "expected a Recipe named 'mine' in .*mine.py, got None; valid are recipe"),
        ("mine = 3", "expected a Recipe named 'mine' in .*mine.py, got 3"),
        ("\nimport nowhere", "mine.py cannot be run: line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1\nmine = ", "mine.py cannot be run: line 2: SyntaxError"),
        ("\n\n1 / 0", "mine.py cannot be run: line 3: ZeroDivisionError"),
        ("exit()", "mine.py cannot be run: line 1: SystemExit"),
        (HEAD + "mine = Recipe(bound=1, hihg=2)", "line 3: TypeError: Unexpected keyword argument 'hihg'"),
        (HEAD + "mine = Recipe(low=3.0)", "line 3: ConfigurationError: low: expected at most 1 with surrogate 'clip'"),
        (HEAD + "mine = Recipe(high='2')", "line 3: ConfigurationError: high: expected a number, got '2'"),
        (HEAD + "mine = Recipe(passes=1.5)", "passes: expected a whole number, got 1.5"),
        (HEAD + "mine = Recipe(passes=True)", "passes: expected a whole number, got True"),
        (HEAD + "mine = Recipe(beta=None)", "beta: expected a number, got None"),
        (HEAD + "mine = Recipe(dual='3')", "dual: expected a number or None, got '3'"),
        (HEAD + "mine = Recipe(level='word')", "level: expected 'token' or 'turn' or 'row' or 'rollout', got 'word'"),
        (HEAD + "mine = Recipe(scale='stdd')", "scale: expected 'none' or .* or a function, got 'stdd'"),
        (HEAD + "mine = Recipe(kl=max)", "kl: expected 'k1' or 'k2' or 'k3' or 'k3\\+', got <built-in function max>"),
    ],
)
def test_a_file_that_gives_no_recipe_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """With file, line and key, where the trainer starts."""
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        AlgorithmConfig(recipe=f"{tmp_path}/mine.py:mine").resolve()


def test_a_users_file_is_a_module_like_others(tmp_path: Path) -> None:
    """What lies beside it can be imported, dataclasses find their module, and none of ours is hidden."""
    (tmp_path / "my_losses.py").write_text("HIGH = 0.7\n")
    (tmp_path / "random.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport my_losses\n"
        + HEAD.strip()
        + "\n@dataclass\nclass Bounds:\n    high: float = my_losses.HIGH\n\nmine = Recipe(high=Bounds().high)\n"
    )
    assert AlgorithmConfig(recipe=f"{tmp_path}/random.py:mine").resolve().high == 0.7
    assert not hasattr(importlib.import_module("random"), "mine")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"recipe": "rlo_clip"}, "recipe: no recipe 'rlo_clip'; did you mean 'rloo_clip'"),
        ({"dual": 0.5}, "dual: expected more than 1, got 0.5"),
        ({"low": 3.0}, "low: expected at most 1 with surrogate 'clip', got 3"),
        ({"recipe": "sapo", "high": 0.0}, "low, high: expected taus above 0"),
        ({"recipe": "dppo", "level": "row"}, "level: expected token with surrogate = 'dppo', got 'row'"),
        ({"correction": "tis"}, "anchor: expected old with correction = 'tis', got 'sampler'"),
        ({"correction": "tis_row"}, "anchor: expected old with correction = 'tis_row', got 'sampler'"),
        ({"correction": "icepop"}, "anchor: expected old with correction = 'icepop', got 'sampler'"),
        ({"recipe": "ppo", "scale": "std"}, "scale: expected none or whiten with baseline = 'critic', got 'std'"),
        ({"beta": 0.1, "kl": "k1"}, "kl: expected k1 in the reward"),
        ({"recipe": "rloo", "kl": "k3"}, "kl: expected k1 in the reward"),
        ({"recipe": "icepop", "correction_low": 6.0}, "correction_low: expected at most correction_high = 5, got 6"),
        (
            {"recipe": "sft", "baseline": "mean"},
            "baseline: expected none or running_mean or a function with outcome = 'one', got 'mean'",
        ),
        ({"recipe": "sft", "scale": "std"}, "scale: expected none or a function with outcome = 'one', got 'std'"),
        ({"kl": "k1"}, "kl: expected beta to be another than 0.0, which does not read it"),
        ({"recipe": "grpo", "reference_every": 9}, "reference_every: expected kl_to to be another than 'reference'"),
        ({"lam": 0.9}, "lam: expected baseline to be another than 'leave_one_out', which does not read it"),
        ({"recipe": "cispo", "dual": 3.0}, "dual: expected surrogate to be another than 'cispo'"),
        ({"correction_low": 0.5}, "correction_low: expected correction to be another than 'none'"),
        ({"recipe": "dapo", "selection": "none"}, "selection: expected 'spread' or 'top_std' with refill = 10, got"),
        ({"overlong": 5, "overlong_buffer": 6}, "overlong_buffer: expected at most overlong = 5, got 6"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(keys: dict[str, Any], message: str) -> None:
    """At load."""
    with pytest.raises(ConfigurationError, match=message):
        AlgorithmConfig(**keys)


def test_a_function_goes_where_the_names_of_its_axis_do_not() -> None:
    """Beside `outcome = "one"`, for what it compares is its own; a critic has no peers to give it."""
    recipe = Recipe(outcome="one", baseline=lambda *peers: [0.0], scale=lambda returns_P: 1.0)
    with pytest.raises(ConfigurationError, match="scale: expected none or whiten with baseline = 'critic', got <func"):
        msgspec.structs.replace(recipe, outcome="return", baseline="critic")
