"""Whether a run's credit goes with what the trainer makes of it, and with what AIR pays.

In: `[credit]`, `[air]`, `[algorithm]`. Out: nothing. Failure: ConfigurationError with the key and the remedy. What is a
user's own code, a strategy or a recipe's file, may be anything, and is not judged.
"""

from __future__ import annotations

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.streams.assemble.air.rules import AirConfig
from tracegrad.streams.credit.config import CreditConfig
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import RECIPES
from tracegrad.trainer.config import AlgorithmConfig

__all__ = ["check_credit"]

_COMPARES = ("mean", "leave_one_out", "length_weighted")


def check_credit(credit: CreditConfig, air: AirConfig, algorithm: AlgorithmConfig, *, is_of_traffic: bool) -> None:
    """Raises ConfigurationError where they do not go together."""
    strategy = credit.strategy
    if is_of_traffic and (strategy != "return_to_go" or credit.gamma != 1.0):
        raise ConfigurationError(
            "[credit] strategy: of captured traffic each conversation is a group of one, whose ratings count for what "
            "they are about; leave [credit] strategy and gamma out, or [select] train"
        )
    if strategy == "broadcast" and air.enabled and (air.rules or air.function):
        raise ConfigurationError(
            "[credit] strategy = 'broadcast': a call is worth the final reward, so [air] would pay nothing; "
            "set [air] enabled = false (--no-air), or strategy = 'return_to_go'"
        )
    shaping = [rule.name for rule in air.rules if rule.shaping] if air.enabled else []
    if shaping and (strategy not in ("return_to_go", "anchor") or credit.gamma != 1.0):
        raise ConfigurationError(
            f"[[air.rules]] {shaping[0]}: what shaping pays is taken back in sums without a discount; set [credit] "
            "strategy = 'return_to_go' and gamma = 1, or leave shaping out"
        )
    if ":" not in algorithm.recipe:
        _check_recipe(credit, algorithm.recipe, algorithm.resolve())


def _check_recipe(credit: CreditConfig, name: str, recipe: Recipe) -> None:
    strategy, needed = credit.strategy, RECIPES[name].credit
    if needed and not credit.is_own and strategy != needed:
        raise ConfigurationError(
            f"[algorithm] recipe = {name!r} is of credit by {needed!r}, got {strategy!r}; set [credit] strategy = "
            f"{needed!r}"
        )
    if recipe.baseline == "critic" and (strategy, credit.gamma) != ("return_to_go", 1.0):
        raise ConfigurationError(
            "[algorithm] baseline = 'critic': what a turn earned is told by the difference of returns to go without a "
            "discount; set [credit] strategy = 'return_to_go' and gamma = 1 ([algorithm] gamma discounts), or another "
            "baseline"
        )
    if strategy == "turn" and not recipe.final:
        raise ConfigurationError(
            "[credit] strategy = 'turn': a turn is worth what it earned itself, the final reward would train nothing; "
            "set [algorithm] final = 1, or recipe = 'mt_grpo'"
        )
    if strategy == "anchor" and (recipe.baseline not in _COMPARES or recipe.over != "peers"):
        raise ConfigurationError(
            "[credit] strategy = 'anchor': turns are compared with those of the group that began in one state, got "
            f"[algorithm] baseline = {recipe.baseline!r} over {recipe.over!r}; set baseline = 'mean' and over = "
            "'peers', or recipe = 'gigpo'"
        )
