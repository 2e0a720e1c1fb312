"""A conversation that people rated, as a group of one; what each of its calls is worth. Pure.

    return_t = R + sum of a_u over the calls u >= t + sum of f_j over the ratings of answers j whose stretch t lies in

R is what was said of the conversation as a whole, a_u what AIR paid call u, f_j the rating of answer j. Its stretch are
the calls from the last user message before it up to j itself, whoever made them: a tool's caller and the agents it
called worked for that answer, the answers before that message were rated by themselves. In: episodes without a rollout.
Out: such episodes with a group, returns. What nobody rated trains nothing, whatever AIR pays it (unless `[select]
unscored = "air"`): a policy that is trained on AIR alone learns to earn that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tracegrad.schemas.records.episodes import Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import GroupRef, is_usable

from ...ratings import reward_of


def as_group(episode: Episode) -> Episode:
    """The episode as it is credited; one without a rollout bears a group: itself alone."""
    if episode.group is not None or episode.rollout_id is not None:
        return episode
    return msgspec.structs.replace(episode, group=GroupRef(id=episode.episode_id, size=1, member=0, index=0))


def as_rated(episode: Episode) -> Episode:
    """One that is to train, with an R: nothing was said of the whole where answers alone were rated, or none."""
    return msgspec.structs.replace(episode, reward=0.0 if episode.reward is None else episode.reward)


def ratings_of(calls: Sequence[EpisodeCall]) -> list[list[float]]:
    """The ratings of each call's stretch, in the order of the calls."""
    ratings: list[list[float]] = [[] for _ in calls]
    for number, call in enumerate(calls):
        said = [reward.value for reward in call.rewards if not reward.is_automatic and is_usable(reward.value)]
        if said:
            for earlier in range(_asked_at(calls, number), number + 1):
                ratings[earlier] += said
    return ratings


def rated(episode: Episode) -> float | None:
    """What people said in all: R and the mean of the answers' ratings, None where they said nothing; of a runner's
    episode its reward."""
    if episode.rollout_id is not None:
        return episode.reward
    whole, _ = reward_of(episode.rewards)
    values = [one.value for call in episode.calls for one in call.rewards if not one.is_automatic]
    return math.fsum((whole or 0.0, math.fsum(values) / len(values))) if values else whole


def _asked_at(calls: Sequence[EpisodeCall], number: int) -> int:
    """The call that answers the last user message before an answer, of the same agent; the answer's own where none is
    known."""
    agent = calls[number].agent
    asked = (at for at in range(number, -1, -1) if calls[at].answers_user and calls[at].agent == agent)
    return next(asked, number)
