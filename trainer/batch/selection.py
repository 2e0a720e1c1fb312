"""Which groups of a batch the recipe's selection leaves out, by the spread of what their rollouts were worth.

In: well-formed groups, a recipe. Out: the reason of each that does not train: it counts as consumed, but in no
denominator. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..algorithm.recipe import Recipe
from ..algorithm.scale import sample_std
from ..algorithm.selection import selected
from .groups import Group

__all__ = ["spread", "unselected"]


def unselected(groups: Sequence[Group], recipe: Recipe) -> dict[str, str]:
    """Group id -> why it does not train, `no_spread` or `low_spread`, of those that the recipe leaves out."""
    if recipe.selection == "none":
        return {}
    stds = {group.summary.group_id: spread(group, recipe.final) for group in groups}
    # With refill what has no spread was given back and replaced, so it may not train after all.
    counted = [id_ for id_, std in stds.items() if std or recipe.refill == 1]
    stays = selected([stds[id_] for id_ in counted], recipe.selection, recipe.share)
    trained = {id_ for id_, stay in zip(counted, stays, strict=True) if stay}
    return {id_: "low_spread" if std else "no_spread" for id_, std in stds.items() if id_ not in trained}


def spread(group: Group, final: float = 0.0) -> float:
    """The std of what its rollouts were worth: the mean return of each one's turns, else its final reward; and `final`
    times that besides, where a recipe compares it too."""
    returns: defaultdict[str, list[float]] = defaultdict(list)
    for (rollout, _), turn in group.turns.items():
        returns[rollout].append(turn.return_)
    rewards = {
        one.rollout_id: one.reward for one in group.summary.members if not one.excluded and one.reward is not None
    }
    for rollout, reward in rewards.items():
        if rollout not in returns:
            returns[rollout].append(reward)
    return sample_std(
        [sum(values) / len(values) + final * rewards.get(rollout, 0.0) for rollout, values in returns.items()]
    )
