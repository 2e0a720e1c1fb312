"""Whether a run's settings can repeat what another trained. Pure; imports nothing heavy: compose asks before it writes.

In: what two runs were told. Out: words on each key that differs: those that change what is learnt, which `same`
refuses, and those of the machine, which change bits and are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import asdict

from tracegrad.schemas.errors import ConfigurationError

from ..algorithm.recipe import Recipe
from ..config import NOT_LEARNT, AlgorithmConfig, TrainerConfig
from .config import History

OF_THE_MACHINE = (
    "device", "dtype", "publish_dtype", "deterministic", "threads", "micro_batch_tokens", "micro_batch_logits",
    "packing", "recompute", "compile",
)  # fmt: skip
"""Keys of `[trainer]` that change the order of sums, or their rounding, and nothing else."""


_BESIDE_LIKELIHOOD = (
    "rows", "passes", "minibatches", "aggregation", "length", "entropy",
    "beta", "kl", "kl_to", "kl_in", "reference_every", "reference_share",
)  # fmt: skip
"""Keys of `[algorithm]` that say nothing of what a return is worth."""


class TrainingInputs(NamedTuple):
    """Of a run, what its training follows from, beside the start model and the records."""

    trainer: TrainerConfig
    algorithm: AlgorithmConfig
    seed: int


def changed_keys(source: TrainingInputs, own: TrainingInputs) -> list[str]:
    """`[trainer] lr 1e-05 -> 2e-05` of each key on which a step depends. Where a recipe is a user's file, which is run
    where it trains and nowhere else, what stands in `[algorithm]` is compared."""
    goes_by_steps = {source.trainer.lr_schedule, own.trainer.lr_schedule} != {"constant"}
    left_out = {*OF_THE_MACHINE, *NOT_LEARNT} - ({"steps"} if goes_by_steps else set())
    is_own_file = ":" in source.algorithm.recipe + own.algorithm.recipe
    was, now = (asdict(one.algorithm if is_own_file else one.algorithm.resolve()) for one in (source, own))
    return [
        *_changed("trainer", asdict(source.trainer), asdict(own.trainer), left_out),
        *_changed("algorithm", was, now, set()),
        *([f"seed {source.seed} -> {own.seed}"] if source.seed != own.seed else []),
    ]


def changed_machine(source: TrainingInputs, own: TrainingInputs) -> list[str]:
    """The same of keys that change bits alone."""
    others = {*TrainerConfig.__struct_fields__} - {*OF_THE_MACHINE}
    return [*_changed("trainer", asdict(source.trainer), asdict(own.trainer), others)]


def _changed(section: str, was: Mapping[str, Any], now: Mapping[str, Any], left_out: set[str]) -> Iterator[str]:
    for key, value in was.items():
        if key not in left_out and value != now[key]:
            yield f"[{section}] {key} {value} -> {now[key]}"


def supervised(algorithm: AlgorithmConfig) -> AlgorithmConfig:
    """The likelihood of what was sampled, with those keys of a policy gradient's settings that it obeys too."""
    return AlgorithmConfig(recipe="sft", **{key: getattr(algorithm, key) for key in _BESIDE_LIKELIHOOD})


def require_recipe(history: History, recipe: Recipe) -> None:
    """Raises ConfigurationError where a mode cannot train by the recipe."""
    is_likelihood = (recipe.outcome, recipe.baseline, recipe.surrogate) == ("one", "none", "reinforce")
    if history.mode == "filter" and not is_likelihood:
        raise ConfigurationError(
            "mode 'filter': expected the likelihood of what was sampled ([algorithm] recipe = \"sft\"), got outcome "
            f"{recipe.outcome!r}, baseline {recipe.baseline!r}, surrogate {recipe.surrogate!r}: of good episodes alone "
            "there is nothing to compare"
        )
