"""Strategy `return_to_go`, the default: a call is worth what came from it on.

    return_t = gamma^(n-1-t) R + sum of gamma^(u-t) r_u over the episode's calls u >= t

R is the episode's final reward, r_u what call u earned itself (AIR, rewards that target it); u runs over all n calls in
the order of the log, whoever made them. gamma = 1, the default, is undiscounted. Of a conversation that people rated
what answers were rated counts for their stretches alone (rated.py). Sums are exact (math.fsum).
Source: the return of a Markov decision process (Sutton and Barto, section 3.3), a call being a step of it as in
arXiv:2508.03680, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tracegrad.schemas.records.episodes import AppliedReward, Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import is_usable

from .peers import peers_of_group
from .rated import ratings_of
from .strategy import CallCredit, Terms, final


def return_to_go(members: Sequence[Episode], terms: Terms) -> list[list[CallCredit]]:
    """The strategy."""
    named = peers_of_group(members, terms.peers)
    return [
        list(map(CallCredit, _returns(episode, terms.gamma), peers))
        for episode, peers in zip(members, named, strict=True)
    ]


def _returns(episode: Episode, gamma: float) -> list[float]:
    if episode.rollout_id is not None:
        return returns_to_go(final(episode), episode.calls, gamma)
    paid = returns_to_go(final(episode), episode.calls, gamma, counts=lambda reward: reward.is_automatic)
    return [math.fsum((value, *said)) for value, said in zip(paid, ratings_of(episode.calls), strict=True)]


def returns_to_go(
    reward: float,
    calls: Sequence[EpisodeCall],
    gamma: float = 1.0,
    *,
    counts: Callable[[AppliedReward], bool] = lambda reward: True,
) -> list[float]:
    """Each call's return, in the order of the calls."""
    later: list[float] = [reward]
    returns: list[float] = []
    for call in reversed(calls):
        if returns and gamma != 1.0:
            later = [gamma * returns[-1]]
        later.extend(one.value for one in call.rewards if is_usable(one.value) and counts(one))
        returns.append(math.fsum(later))
    return returns[::-1]
