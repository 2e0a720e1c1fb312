"""Which of a batch's groups train by the recipe's selection; the others are excluded with its reason.

In: a batch, a recipe. Out: the batch without them: they count as consumed, but in no denominator. Pure.
"""

from __future__ import annotations

from collections import defaultdict

from ..algorithm.recipe import Recipe
from ..algorithm.scale import sample_std
from ..algorithm.selection import selected
from .batches import Batch
from .groups import Group

__all__ = ["select"]

_ROUNDING = 1e-9
"""Of the greatest return: a std below it is rounding."""


def select(batch: Batch, recipe: Recipe) -> Batch:
    """The batch of the groups that the recipe trains."""
    if recipe.selection == "none":
        return batch
    stds = [_std(group) for group in batch.groups]
    stays = selected(stds, recipe.selection, recipe.share)
    groups = zip(batch.groups, stds, stays, strict=True)
    return batch.without(
        {group.summary.group_id: "low_spread" if std else "no_spread" for group, std, stay in groups if not stay}
    )


def _std(group: Group) -> float:
    """Of what its rollouts were worth: the mean return of each one's turns, else its final reward."""
    returns: defaultdict[str, list[float]] = defaultdict(list)
    for (rollout, _), turn in group.turns.items():
        returns[rollout].append(turn.return_)
    for member in group.summary.members:
        if not member.excluded and member.reward is not None and member.rollout_id not in returns:
            returns[member.rollout_id].append(member.reward)
    worth = [sum(values) / len(values) for values in returns.values()]
    std = sample_std(worth)
    return std if std > _ROUNDING * max(map(abs, worth), default=0.0) else 0.0
