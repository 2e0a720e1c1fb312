"""Strategy `turn`: a call is worth what it earned itself, and the final reward is another comparison.

    return_t = r_t        compared with the same turn of the same agent
    A_t = A(return_t) + lambda A(R)

The second line is the trainer's: `[algorithm] final` is lambda, which the recipe `mt_grpo` sets to 1. Rewards of later
turns count for none before them, and the last turn, which nothing pays, is trained by R alone.
Source: MT-GRPO (arXiv:2505.11821): A^T + lambda A^O, A^O in the last turn. Ours takes any number of turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracegrad.schemas.records.episodes import Episode

from .peers import peers_of_group
from .strategy import CallCredit, Terms, earned


def turn(members: Sequence[Episode], terms: Terms) -> list[list[CallCredit]]:
    """The strategy."""
    return [
        [CallCredit(math.fsum(own), peers) for own, peers in zip(earned(episode), named, strict=True)]
        for episode, named in zip(members, peers_of_group(members, "turn"), strict=True)
    ]
