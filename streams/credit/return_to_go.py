"""Credit by return-to-go: what each turn of a group is worth.

    return_t = R + sum of r_u over the episode's calls u >= t, undiscounted (gamma = 1)

R is the episode's final reward, r_u what call u earned itself (AIR and rewards that target it), u runs over all
calls in the order of the log, whoever made them. With which turns a turn is compared is `peers.py`. `weight` is 1.
Invariant: computes only what one group determines; sums by math.fsum, members in member order.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import msgspec

from tracegrad.schemas.beat import waiting
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.metrics import CALLS_LEFT_OUT, MEMBERS_EXCLUDED, Metrics
from tracegrad.schemas.records.episodes import AppliedReward, Episode, EpisodeCall, why_excluded
from tracegrad.schemas.records.rollouts import MAX_REWARD, PeersRule, is_usable
from tracegrad.schemas.records.transitions import GroupSummary, MemberSummary, SegmentRow, encode_group
from tracegrad.schemas.topics import Topic, Topics

from .conversations import rated, ratings_of
from .peers import peers_of_group
from .segments import build_segments

__all__ = ["credit_group", "returns_of", "returns_to_go"]

_KEPT = ("episode_id", "state", "num_tools", "num_tools_succeeded")
"""What an episode says and its member of the group repeats, under the same names."""
_LOGGER = logging.getLogger(__name__)


def credit_group(
    members: Sequence[Episode], policy: str, topics: Topics, metrics: Metrics, *, rule: PeersRule = "turn_or_end"
) -> bytes:
    """The `transitions` record of a closed group for one policy; never raises for what members hold."""
    summaries: list[MemberSummary] = []
    rows: list[SegmentRow] = []
    for episode, peers in zip(members, peers_of_group(members, rule), strict=True):
        waiting("crediting a rollout")  # one may take ten seconds, a group has many
        reason = why_excluded(episode, policy)
        if not reason:
            try:
                assert episode.reward is not None  # else it were unscored
                returns = returns_of(episode, episode.reward)
                if not all(map(is_usable, returns)):
                    raise RecordError(f"expected returns of at most {MAX_REWARD:g}, got another", reason="bad_return")
                built = build_segments(episode, policy, returns, peers)
                num_calls = sum(call.policy == policy for call in episode.calls)
                metrics.add(CALLS_LEFT_OUT, num=num_calls - sum(len(row.turns) for row in built))
                rows.extend(built)
            except RecordError as error:
                reason = error.reason
        if reason:
            metrics.add(MEMBERS_EXCLUDED, reason)
        summaries.append(_summary(episode, reason))
    assert members[0].group is not None
    summary = GroupSummary(
        group_id=members[0].group.id,
        group_index=members[0].group.index,
        task_id=members[0].task_id or "",
        policy=policy,
        members=tuple(summaries),
        excluded="" if any(not summary.excluded for summary in summaries) else "all_members_excluded",
        peers=rule,
    )
    return _encode(summary, rows, topics)


def returns_of(episode: Episode, final: float) -> list[float]:
    """Each call's return; of a conversation what answers were rated counts for their stretches alone."""
    if episode.rollout_id is not None:
        return returns_to_go(final, episode.calls)
    paid = returns_to_go(final, episode.calls, counts=lambda reward: reward.is_automatic)
    return [math.fsum((value, *said)) for value, said in zip(paid, ratings_of(episode.calls), strict=True)]


def returns_to_go(
    final: float, calls: Sequence[EpisodeCall], *, counts: Callable[[AppliedReward], bool] = lambda reward: True
) -> list[float]:
    """Each call's return, in the order of the calls."""
    later: list[float] = [final]
    returns: list[float] = []
    for call in reversed(calls):
        later.extend(reward.value for reward in call.rewards if is_usable(reward.value) and counts(reward))
        returns.append(math.fsum(later))
    return returns[::-1]


def _summary(episode: Episode, excluded: str) -> MemberSummary:
    reward = rated(episode)
    return MemberSummary(
        rollout_id=episode.rollout_id or episode.episode_id,
        attempt_id=episode.attempt_id or "",
        reward=reward if is_usable(reward) else None,
        excluded=excluded,
        **{name: getattr(episode, name) for name in _KEPT},
    )


def _encode(summary: GroupSummary, rows: list[SegmentRow], topics: Topics) -> bytes:
    """The record; without rows, and with the reason, when they do not fit."""
    try:
        value = encode_group(summary, rows)
        topics.check_size(Topic.TRANSITIONS, value)
    except (OverflowError, TypeError, ValueError) as error:  # Arrow's refusals derive from the last two
        reason = error.reason if isinstance(error, RecordError) else "unencodable"
        _LOGGER.warning("group %s trains nothing: %s", summary.group_id, error)
        return encode_group(msgspec.structs.replace(summary, excluded=reason, detail=str(error)[:500]), [])
    return value
