"""A batch's rows become the rows of each of its updates: passes over it, and mini-batches within a pass.

In: the rows, their groups, a recipe, and numbers that seed the order. Out: the rows of each update. Invariant: each
rollout is in exactly one mini-batch of a pass, with all its rows, so that the ratio of a unit is of the whole unit; the
order depends on the seed alone, so that a batch which is taken again is dealt alike. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from ..algorithm.recipe import Recipe
from .groups import Group
from .rows import TrainingRow, rollout_tokens, rollout_weights

__all__ = ["updates"]


def updates(
    rows: Sequence[TrainingRow], groups: Sequence[Group], recipe: Recipe, *, seed: str
) -> list[list[TrainingRow]]:
    """The rows of each update, in turn; by default all of them, once.

    The denominators of a mini-batch count its own rollouts and tokens, as verl has it (`agg_loss`: token-mean over the
    mini-batch's tokens, sequence means over its sequences), so that each update is a step of the same length. Rollouts
    are dealt anew in each pass (as TRL shuffles them; verl by option), the k-th, k + n-th and so on to part k of n.
    """
    if recipe.minibatches == 1:
        return [list(rows)] * recipe.passes
    tokens = rollout_tokens(groups)
    order, dealer = [*tokens], random.Random(seed)
    parts: list[list[TrainingRow]] = []
    for _ in range(recipe.passes):
        dealer.shuffle(order)
        for number in range(recipe.minibatches):
            own = {rollout: tokens[rollout] for rollout in order[number :: recipe.minibatches]}
            weights = rollout_weights(groups, recipe, own)
            parts.append([replace(row, token_weight=weights[row.rollout_id]) for row in rows if row.rollout_id in own])
    return parts
