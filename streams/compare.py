"""What other rules or another credit strategy would have made of recorded episodes, from their records alone. Pure.

In: final training episodes of one run; two ways to reward and credit them. Out: which groups gain or lose spread, the
rank correlation of the returns of all calls, what each rule paid to which agent, the episodes that change most. A group
has spread where its rollouts differ in the mean return of their calls: without it nothing is learnt from it.
Invariant: the order of the episodes changes nothing. Failure: none; of an episode that cannot train nothing is told.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import is_usable

from .credit.config import Credits

__all__ = ["Comparison", "Side", "compare"]

_MOST = 10


class Side(NamedTuple):
    """One way."""

    reward: Callable[[Episode], Episode]
    credits: Credits


class Comparison(NamedTuple):
    """What differs from A to B."""

    num_groups: int
    num_calls: int
    gained: tuple[str, ...]
    """Groups that have spread by B alone."""
    lost: tuple[str, ...]
    rank_correlation: float | None
    """Spearman's, over the returns of all calls; None where one side's are all equal."""
    paid: tuple[dict[str, float], dict[str, float]]
    """By A and by B: `air:<name> <agent>` -> the sum."""
    most: tuple[tuple[str, float], ...]
    """(episode, the greatest change of a call's return), greatest first."""


def compare(episodes: Iterable[Episode], a: Side, b: Side) -> Comparison:
    """Both ways on all groups."""
    groups: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.group is not None and episode.is_final and is_usable(episode.reward) and episode.calls:
            groups[episode.group.id].append(episode)
    returns: tuple[list[float], list[float]] = ([], [])
    paid: tuple[dict[str, float], dict[str, float]] = ({}, {})
    gained: list[str] = []
    lost: list[str] = []
    changes: list[tuple[str, float]] = []
    for group_id, members in sorted(groups.items()):
        members.sort(key=lambda one: (one.group.member if one.group else 0, one.episode_id))
        found = [_returns(members, side, sums) for side, sums in zip((a, b), paid, strict=True)]
        has_spread = [len({math.fsum(own) / len(own) for own in of_members}) > 1 for of_members in found]
        if has_spread[0] != has_spread[1]:
            (gained if has_spread[1] else lost).append(group_id)
        for all_returns, of_members in zip(returns, found, strict=True):
            all_returns.extend(value for own in of_members for value in own)
        for episode, before, after in zip(members, *found, strict=True):
            change = max(abs(y - x) for x, y in zip(before, after, strict=True))
            changes.append((episode.episode_id, change))
    changes.sort(key=lambda one: (-one[1], one[0]))
    return Comparison(
        num_groups=len(groups),
        num_calls=len(returns[0]),
        gained=tuple(gained),
        lost=tuple(lost),
        rank_correlation=_correlation(_ranks(returns[0]), _ranks(returns[1])),
        paid=paid,
        most=tuple(one for one in changes[:_MOST] if one[1]),
    )


def _returns(members: Sequence[Episode], side: Side, paid: dict[str, float]) -> list[list[float]]:
    rewarded = [side.reward(episode) for episode in members]
    for call in (call for episode in rewarded for call in episode.calls):
        for one in call.rewards:
            if one.is_automatic:
                name = f"{one.rule} {call.agent or ''}".strip()
                paid[name] = paid.get(name, 0.0) + one.value
    strategy, terms = side.credits
    return [[one.return_ for one in of_calls] for of_calls in strategy(rewarded, terms)]


def _ranks(values: Sequence[float]) -> list[float]:
    """From 0; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    for at in range(1, len(order) + 1):
        if at == len(order) or values[order[at]] != values[order[begin]]:
            for place in order[begin:at]:
                ranks[place] = (begin + at - 1) / 2
            begin = at
    return ranks


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    if not xs:
        return None
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    across = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    squares = [math.fsum((x - mean) ** 2 for x in values) for values, mean in ((xs, mean_x), (ys, mean_y))]
    return across / math.sqrt(squares[0] * squares[1]) if all(squares) else None
