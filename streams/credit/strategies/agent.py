"""Strategy `agent`: every call of an agent is worth what its rollout was worth to that agent.

    return_t = R + sum of r_u over all calls u of the same agent        compared with the calls of that agent

With the trainer's `baseline = "running_mean"` (and `decay = 0.95`) the mean that a return is compared with is kept for
each agent over the batches, as in the source; with a mean of the group no agent is compared with another.
Source: role-conditioned advantage estimation, RAE (SPIRAL, arXiv:2506.24119): A_p = R_p - b_p, b_p an exponential mean
of the role's returns. Its b_p takes this game's R_p in first; ours is the mean before the batch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from tracegrad.schemas.records.episodes import Episode

from .peers import peers_of_group
from .strategy import CallCredit, Terms, earned, final


def agent(members: Sequence[Episode], terms: Terms) -> list[list[CallCredit]]:
    """The strategy."""
    return [
        _of_episode(episode, named) for episode, named in zip(members, peers_of_group(members, "rollout"), strict=True)
    ]


def _of_episode(episode: Episode, agents: Sequence[str]) -> list[CallCredit]:
    parts: defaultdict[str, list[float]] = defaultdict(lambda: [final(episode)])
    for name, own in zip(agents, earned(episode), strict=True):
        parts[name] += own
    returns = {name: math.fsum(values) for name, values in parts.items()}
    return [CallCredit(returns[name], name) for name in agents]
