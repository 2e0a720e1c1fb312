"""What rewards make of an episode: of the whole, and of the calls that they are about. Pure; what the stages share.

    several ratings of one thing    their mean, or who clicks twice would count twice
    the same idempotency key        what was said last

In: rewards that count. Out: sums, calls with what they earned. Invariant: equal rewards give equal results, whatever
their order; none that is missing, or no usable number, is ever read as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import EPISODES, AppliedReward, Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import AGENT_REWARD, FEEDBACK_SOURCE, REWARDS, Reward, is_usable, piece_id


def reward_of(rewards: Sequence[Reward], awaited: Iterable[str] = ()) -> tuple[float | None, str]:
    """(the episode's reward, why there is none), of rewards that count; those that target a call are not summed.

    What is missing, has no value or is no usable number makes the sum unscored.
    """
    missing = sorted(set(awaited) - {reward.name for reward in rewards})
    if missing:
        return None, f"missing: {', '.join(missing)}"
    values = []
    for reward in rewards:
        if reward.target is None and not reward.name.startswith(f"{AGENT_REWARD}."):
            if reward.value is None:
                return None, reward.reason or "unscored"
            if not is_usable(reward.value):
                return None, "out_of_range"
            values.append(reward)
    return (math.fsum(value for _, value in _values(values)), "") if values else (None, "no_reward")


def with_rewards(calls: Sequence[EpisodeCall], rewards: Iterable[Reward]) -> tuple[EpisodeCall, ...]:
    """The calls with these rewards, each at the call that it targets, or that asked for the tool call that it targets.

    They stand behind what rules paid; what else the calls had goes.
    """
    asked_by = {tool.id: call.call_id for call in calls for tool in call.tool_calls}
    targeted: dict[str, list[Reward]] = {}
    for reward in rewards:
        if reward.target is not None and is_usable(reward.value):
            targeted.setdefault(asked_by.get(reward.target, reward.target), []).append(reward)
    given = {
        call_id: [AppliedReward(rule=name, value=value) for name, value in _values(rated)]
        for call_id, rated in targeted.items()
    }
    return tuple(
        msgspec.structs.replace(
            call, rewards=(*(one for one in call.rewards if one.is_automatic), *given.get(call.call_id, ()))
        )
        for call in calls
    )


def rated_anew(episode: Episode, said: Iterable[Reward]) -> Episode:
    """The episode as it would be had this feedback come before it closed."""
    last: dict[tuple[str, str, str], Reward] = {}
    counting = (one for one in episode.rewards if one.source != FEEDBACK_SOURCE or is_about(one, episode))
    for reward in sorted((*counting, *said), key=said_at):
        last[reward.source, reward.idempotency_key, reward.target or ""] = reward
    rewards = tuple(sorted(last.values(), key=in_order))
    total, unscored = reward_of(rewards)
    calls = tuple(map(_chosen, with_rewards(episode.calls, rewards)))
    return msgspec.structs.replace(episode, calls=calls, rewards=rewards, reward=total, unscored=unscored)


def rate_again(episode: bytes, said: Sequence[bytes]) -> bytes:
    """The record of `episodes` as credit takes it.

    Args:
        episode: as assemble writes it.
        said: records of `rewards`, which the run's `transitions` name as the feedback that counted.
    """
    return EPISODES.encode(rated_anew(EPISODES.decode(episode), map(REWARDS.decode, said)))


def _chosen(call: EpisodeCall) -> EpisodeCall:
    """One of several answers to a request that is rated is the one that counts."""
    is_rated = call.masked == Reason.NOT_CHOSEN and not all(reward.is_automatic for reward in call.rewards)
    return msgspec.structs.replace(call, masked="") if is_rated else call


def is_about(reward: Reward, episode: Episode) -> bool:
    """Whether feedback on a conversation is about this episode of it: an answer or a tool call in it, or all that was
    there when it was said, by the gateways' clocks. The first one always was."""
    if reward.target is None:
        return reward.at_ms >= episode.began_at_ms or episode.episode_id == episode.conversation
    return any(reward.target in (call.call_id, *(tool.id for tool in call.tool_calls)) for call in episode.calls)


def pieces_of(rewards: Iterable[Reward]) -> tuple[str, ...]:
    """The feedback among these, as a marker tells of it."""
    return tuple(sorted({piece_id(reward) for reward in rewards if reward.source == FEEDBACK_SOURCE}))


def in_order(reward: Reward) -> tuple[str, str, str]:
    """The canonical order of an episode's rewards."""
    return reward.name, reward.target or "", reward.idempotency_key


def said_at(reward: Reward) -> tuple[int, bytes]:
    """By this of two words under one key the greater is the last, wherever and in whatever order they come."""
    return reward.at_ms, REWARDS.encode(reward)


def _values(rewards: Iterable[Reward]) -> Iterator[tuple[str, float]]:
    """(name, value) of usable rewards of one thing."""
    ratings: dict[str, list[float]] = {}
    for reward in rewards:
        assert reward.value is not None
        if reward.source == FEEDBACK_SOURCE:
            ratings.setdefault(reward.name, []).append(reward.value)
        else:
            yield reward.name, reward.value
    for name, values in ratings.items():
        yield name, math.fsum(values) / len(values)
