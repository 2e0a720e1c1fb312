"""What other rules or another credit strategy would have made of recorded episodes, from their records alone. Pure.

In: final training episodes of one run; two ways to reward and credit them. Out: which groups gain or lose spread, the
rank correlation of the returns of all calls, what each rule paid to which agent, the episodes that change most. A group
has spread where its rollouts differ in the mean return of their calls: without it nothing is learnt from it.
Invariant: the order of the episodes changes nothing. Failure: none; of an episode that cannot train nothing is told.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import is_usable

from .credit.config import Credits

_MOST = 10
Paid = defaultdict[str, Counter[float]]
"""`air:<name> <agent>` -> amount -> how often: sums are the same whatever the order."""


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
    """Both ways on all groups. An episode that was written twice counts once; a group is let go of when it is whole."""
    found = _Sums(a, b)
    waiting: defaultdict[str, list[Episode]] = defaultdict(list)
    seen: set[str] = set()
    for episode in episodes:
        if episode.group is None or not episode.is_final or episode.episode_id in seen:
            continue
        seen.add(episode.episode_id)
        if is_usable(episode.reward) and episode.calls:
            waiting[episode.group.id].append(episode)
            if len(waiting[episode.group.id]) == episode.group.size:
                found.add_group(episode.group.id, waiting.pop(episode.group.id))
    for group_id, members in waiting.items():
        found.add_group(group_id, members)
    return found.comparison()


class _Sums:
    """Sums of groups, whatever their order."""

    def __init__(self, a: Side, b: Side) -> None:
        self._sides = (a, b)
        self._returns = (array("d"), array("d"))
        self._paid: tuple[Paid, Paid] = (defaultdict(Counter), defaultdict(Counter))
        self._groups: set[str] = set()
        self._differ: tuple[set[str], set[str]] = (set(), set())
        self._changes: list[tuple[str, float]] = []

    def add_group(self, group_id: str, members: list[Episode]) -> None:
        """One group."""
        members.sort(key=lambda one: (one.group.member if one.group else 0, one.episode_id))
        found = [_returns(members, side, paid) for side, paid in zip(self._sides, self._paid, strict=True)]
        means = [[math.fsum(own) / len(own) for own in of_members] for of_members in found]
        for differ, of_side in zip(self._differ, means, strict=True):
            if len(set(of_side)) > 1:
                differ.add(group_id)
        self._groups.add(group_id)
        for all_returns, of_members in zip(self._returns, found, strict=True):
            all_returns.extend(value for own in of_members for value in own)
        for episode, before, after in zip(members, *found, strict=True):
            change = max(abs(y - x) for x, y in zip(before, after, strict=True))
            self._changes.append((episode.episode_id, change))
        self._changes = sorted(self._changes, key=lambda one: (-one[1], one[0]))[:_MOST]

    def comparison(self) -> Comparison:
        """Of all."""
        by_a, by_b = self._differ
        return Comparison(
            num_groups=len(self._groups),
            num_calls=len(self._returns[0]),
            gained=tuple(sorted(by_b - by_a)),
            lost=tuple(sorted(by_a - by_b)),
            rank_correlation=_correlation(*self._returns),
            paid=(_summed(self._paid[0]), _summed(self._paid[1])),
            most=tuple(one for one in self._changes if one[1]),
        )


def _returns(members: Sequence[Episode], side: Side, paid: Paid) -> list[list[float]]:
    rewarded = [side.reward(episode) for episode in members]
    for call in (call for episode in rewarded for call in episode.calls):
        for one in call.rewards:
            if one.is_automatic:
                paid[f"{one.rule} {call.agent or ''}".strip()][one.value] += 1
    strategy, terms = side.credits
    return [[one.return_ for one in of_calls] for of_calls in strategy(rewarded, terms)]


def _summed(paid: Paid) -> dict[str, float]:
    return {name: math.fsum(value * num for value, num in paid[name].items()) for name in sorted(paid)}


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Of the ranks (Spearman's); None where one side's values are all alike."""
    try:
        return statistics.correlation(_ranks(xs), _ranks(ys))
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    """From 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: list[float] = (np.cumsum(counts) - (counts + 1) / 2)[place].tolist()
    return ranks
