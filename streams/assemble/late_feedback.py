"""Feedback on a captured conversation that comes when the episode it is about has closed: it goes on to credit.

In: rewards that count, and the key that they came by. Out: records of `episode_scores`, in the partition of the
conversation's episodes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from tracegrad.schemas.fold import Output
from tracegrad.schemas.keys import group_key
from tracegrad.schemas.log.protocol import Headers
from tracegrad.schemas.records.episodes import EPISODE_SCORES, EmittedEpisode, Score
from tracegrad.schemas.records.facts import Fact, RewardFact
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, Reward
from tracegrad.schemas.topics import Topic


def feedback_in(facts: Iterable[Fact]) -> list[Reward]:
    """The feedback among these."""
    rewards = (fact.reward for fact in facts if isinstance(fact, RewardFact))
    return [reward for reward in rewards if reward.source == FEEDBACK_SOURCE]


def divided(
    said: Sequence[Reward], minted: Container[str | None] | None, *, has_earlier: bool
) -> tuple[list[Reward], list[Reward]]:
    """What is on an episode that closes, and what is about others of its conversation, maybe too.

    Args:
        minted: the ids of its calls and tool calls; None: there is no record of it, so that all is about others.
        has_earlier: an episode of the conversation closed before, and may wait for what is said of all of it.
    """
    if minted is None:
        return [], [*said]
    here = [one for one in said if one.target is None or one.target in minted]
    return here, [one for one in said if (has_earlier if one.target is None else one.target not in minted)]


def emitted(key: str, episode_id: str) -> Output:
    """The record that tells of an episode where what is said of its conversation behind its close will lie."""
    value = EPISODE_SCORES.encode(EmittedEpisode(key=key, episode_id=episode_id))
    return Output(topic=Topic.EPISODE_SCORES, key=group_key(None, key), value=value)


def scores(key: str, rewards: Iterable[Reward], origin_of: Callable[[Reward], Headers]) -> tuple[Output, ...]:
    """The records that tell of them. `origin_of`: the header that tells where one lies on `rewards`."""
    return tuple(
        Output(
            topic=Topic.EPISODE_SCORES,
            key=group_key(None, key),
            value=EPISODE_SCORES.encode(Score(key=key, reward=reward)),
            headers=origin_of(reward),
        )
        for reward in rewards
    )
