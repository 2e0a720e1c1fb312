"""Writes the `transitions` record of a closed group: what its calls are worth, in rows of tokens.

In: the members of a group, the policy, and the strategy of `[credit]`. Out: one Arrow record; equal members give equal
bytes. Invariant: members in member order; a member that cannot train is listed with its reason. Failure: none for what
members hold; a strategy that fails, or gives what cannot be computed with, costs the group or the member.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from tracegrad.schemas.beat import waiting
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.metrics import CALLS_LEFT_OUT, CALLS_MASKED, MEMBERS_EXCLUDED, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import Episode, why_excluded
from tracegrad.schemas.records.rollouts import MAX_REWARD, is_usable
from tracegrad.schemas.records.transitions import MAX_WEIGHT, GroupSummary, MemberSummary, SegmentRow, encode_group
from tracegrad.schemas.topics import Topic, Topics

from .config import CreditConfig, Credits
from .segments import build_segments
from .strategies.rated import rated
from .strategies.strategy import CallCredit

_KEPT = ("episode_id", "state", "num_tools", "num_tools_succeeded")
"""What an episode says and its member of the group repeats, under the same names."""
_LOGGER = logging.getLogger(__name__)
_DEFAULT = CreditConfig().resolve()


def credit_group(
    members: Sequence[Episode], policy: str, topics: Topics, metrics: Metrics, credits: Credits = _DEFAULT
) -> bytes:
    """The `transitions` record of a closed group for one policy; never raises for what members hold."""
    summaries: list[MemberSummary] = []
    rows: list[SegmentRow] = []
    credited, problem = _credited(members, credits)
    for episode, of_calls in zip(members, credited, strict=True):
        waiting("crediting a rollout")  # one may take ten seconds, a group has many
        reason = why_excluded(episode, policy) or (Reason.STRATEGY_FAILED if problem else "")
        if not reason:
            try:
                _check(of_calls)
                built = build_segments(episode, policy, of_calls)
                num_calls = sum(call.policy == policy for call in episode.calls)
                metrics.add(CALLS_LEFT_OUT, num=num_calls - sum(len(row.turns) for row in built))
                for turn in (turn for row in built for turn in row.turns if turn.masked):
                    metrics.add(CALLS_MASKED, turn.masked)
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
        excluded="" if any(not summary.excluded for summary in summaries) else Reason.ALL_MEMBERS_EXCLUDED,
        detail=problem,
        peers=credits.terms.peers,
        air_rules=tuple(sorted({episode.air_rules for episode in members if episode.air_rules})),
    )
    return _encode(summary, rows, topics)


def _credited(members: Sequence[Episode], credits: Credits) -> tuple[list[Sequence[CallCredit]], str]:
    """What each call of each member is worth; and what is wrong with what the strategy gave, which then counts for
    nothing."""
    try:
        found = [[_plain(one) for one in of_calls] for of_calls in credits.strategy(members, credits.terms)]
        wanted, given = [len(episode.calls) for episode in members], list(map(len, found))
        problem = "" if wanted == given else f"expected credit of {wanted[:10]} calls of the members, got {given[:10]}"
    except Exception as error:  # the user's code; ours would end the worker at every group just as well
        problem = f"{type(error).__name__}: {error}"
    if not problem:
        return list(found), ""
    name = getattr(credits.strategy, "__name__", "of [credit]")
    _LOGGER.warning("group %s trains nothing: strategy %s: %s", members[0].group, name, problem[:500])
    return [() for _ in members], f"strategy {name}: {problem}"[:500]


def _plain(one: Any) -> CallCredit:
    """A CallCredit of plain numbers, whatever the user's code made them of."""
    return_, peers, weight = CallCredit(*one)
    if not isinstance(peers, str):
        raise TypeError(f"expected peers to be text, got {peers!r}")
    return CallCredit(float(return_), peers, float(weight))


def _check(of_calls: Sequence[CallCredit]) -> None:
    if not all(is_usable(one.return_) for one in of_calls):
        raise RecordError(f"expected returns of at most {MAX_REWARD:g}, got another", reason=Reason.BAD_RETURN)
    if not all(abs(one.weight) <= MAX_WEIGHT for one in of_calls):
        raise RecordError(f"expected weights of at most {MAX_WEIGHT:g}, got another", reason=Reason.BAD_WEIGHT)


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
        reason = error.reason if isinstance(error, RecordError) else Reason.UNENCODABLE
        _LOGGER.warning("group %s trains nothing: %s", summary.group_id, error)
        return encode_group(msgspec.structs.replace(summary, excluded=reason, detail=str(error)[:500]), [])
    return value
