"""What a run that repeats another may say otherwise, and which recipes a mode can train by."""

from __future__ import annotations

from typing import Any

import pytest

from tests.versions import RUN
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import RECIPES
from tracegrad.trainer.config import AlgorithmConfig, TrainerConfig
from tracegrad.trainer.history.compare import TrainingInputs, changed_keys, changed_machine, require_recipe, supervised
from tracegrad.trainer.history.config import History

SOURCE = TrainingInputs(TrainerConfig(), AlgorithmConfig(), 0)


def taught(*, seed: int = 0, algorithm: dict[str, Any] | None = None, **trainer: Any) -> TrainingInputs:
    """The source's, but for these keys."""
    return TrainingInputs(TrainerConfig(**trainer), AlgorithmConfig(**(algorithm or {})), seed)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (taught(), []),
        (taught(lr=2e-5), ["[trainer] lr 1e-05 -> 2e-05"]),
        (taught(groups_per_step=4, seed=3), ["[trainer] groups_per_step 8 -> 4", "seed 0 -> 3"]),
        (taught(algorithm={"low": 0.1}), ["[algorithm] low 0.2 -> 0.1"]),
        (taught(algorithm={"recipe": "rloo_clip", "low": 0.2}), []),
        (taught(steps=99, keep_versions=0, checkpoint_every=5, threads=2), []),
        (
            taught(steps=99, lr_schedule="linear"),
            ["[trainer] steps 80 -> 99", "[trainer] lr_schedule constant -> linear"],
        ),
        (taught(algorithm={"recipe": "mine.py:best"}), ["[algorithm] recipe rloo_clip -> mine.py:best"]),
    ],
)
def test_each_key_that_changes_what_is_learnt_is_named(own: TrainingInputs, words: list[str]) -> None:
    """A recipe that is spelt out otherwise is the same; how long a run may go on matters to a schedule alone."""
    assert changed_keys(SOURCE, own) == words


def test_what_changes_bits_alone_is_told_apart() -> None:
    """Threads and micro-batches change the order of sums."""
    own = taught(threads=2, micro_batch_tokens=512, lr=1.0)
    assert changed_machine(SOURCE, own) == ["[trainer] threads 1 -> 2", "[trainer] micro_batch_tokens 0 -> 512"]


def history(mode: Any) -> History:
    """Of nothing."""
    return History(mode=mode, run=RUN, end_offset=0)


@pytest.mark.parametrize("mode", ["same", "offline"])
@pytest.mark.parametrize("recipe", ["rloo_clip", "sft"])
def test_other_modes_take_any_recipe(mode: str, recipe: str) -> None:
    """`same` and `offline` compare as the source did, or as the settings say."""
    require_recipe(history(mode), RECIPES[recipe].recipe)


@pytest.mark.parametrize("more", [{}, {"kl_to": "sampler", "kl": "k2"}])
def test_filter_takes_the_likelihood_with_what_does_not_compare(more: dict[str, Any]) -> None:
    """A KL, to the start model or to the sampler."""
    require_recipe(history("filter"), Recipe(outcome="one", baseline="none", surrogate="reinforce", beta=0.1, **more))


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_any_settings_become_those_of_the_likelihood(name: str) -> None:
    """What says how a return is compared is dropped, the form of rows and the number of passes are kept."""
    made = supervised(AlgorithmConfig(recipe=name, rows="transitions", passes=2, low=None))
    require_recipe(history("filter"), made.resolve())
    assert (made.resolve().rows, made.resolve().passes) == ("transitions", 2)
    assert supervised(made) == made


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"sft"}))
def test_filter_refuses_every_other_named_recipe(name: str) -> None:
    """Good episodes compared with each other teach nothing of what makes them good."""
    with pytest.raises(ConfigurationError, match='recipe = "sft"'):
        require_recipe(history("filter"), RECIPES[name].recipe)
