"""Strategy `broadcast`: every call of a rollout is worth its final reward.

    return_t = R

What calls earned themselves does not count, so AIR's rules pay nothing by it. Compared turn by turn with `turn_or_end`
(the default), all rollouts of the group are each call's peers, each with its R: the group's comparison of GRPO.
Source: the credit assignment of Agent Lightning (arXiv:2508.03680, section 3.3): the episode's return for each action.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.schemas.records.episodes import Episode

from .peers import peers_of_group
from .strategy import CallCredit, Terms, final


def broadcast(members: Sequence[Episode], terms: Terms) -> list[list[CallCredit]]:
    """The strategy."""
    named = peers_of_group(members, terms.peers)
    return [[CallCredit(final(one), peers) for peers in own] for one, own in zip(members, named, strict=True)]
