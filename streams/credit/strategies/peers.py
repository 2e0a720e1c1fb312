"""With whom a turn is compared: `peers`, of each call of each member of a group.

In: the members of a closed group, and the rule. Out: texts; the trainer compares turns with equal ones. A turn's peers
are the same turn of the same agent in the group's other rollouts (a baseline per turn index, as in MT-GRPO,
arXiv:2505.11821, which has two levels only), never another agent's: what a planner's turn is worth says nothing of a
coder's. By the rule `turn_or_end` a member without that turn counts there with its final reward, which the trainer
finds beside the members; by `rollout` all turns of an agent are peers.
Invariant: a function of the group alone, whatever the order of its members. Failure: none; a call that no span names
is a turn of the only agent that its episode names, else of the only one that the group names, else of the unnamed
agent, which is one agent and is written as an empty name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracegrad.schemas.records.episodes import Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import PeersRule


def peers_of_group(members: Sequence[Episode], rule: PeersRule) -> list[list[str]]:
    """`Turn.peers` of each call of each member: `planner:0`, say, and `:0` where nobody knows the agent."""
    sole = _sole(call for episode in members for call in episode.calls)
    return [_peers_of_episode(episode, sole, rule) for episode in members]


def _peers_of_episode(episode: Episode, sole: str, rule: PeersRule) -> list[str]:
    # assemble counted the unnamed calls of an episode with one agent among that agent's turns.
    unnamed = _sole(episode.calls) or sole
    agents = [call.agent or unnamed for call in episode.calls]
    if rule == "rollout":
        return agents
    return [f"{agent}:{call.turn}" for agent, call in zip(agents, episode.calls, strict=True)]


def _sole(calls: Iterable[EpisodeCall]) -> str:
    """The one agent that these calls name; empty when they name none, or several."""
    named = {call.agent for call in calls if call.agent}
    return named.pop() if len(named) == 1 else ""
