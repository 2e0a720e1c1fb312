"""Whether a history that was folded holds a call to train on; else how many calls there were, and why none trains.

In: `transitions` of the new run, then, only where nothing trains, its `episodes`. Out: nothing, or one sentence.
Invariant: it judges as the trainer does before its first step, so that a run without anything to learn loads no model
and publishes no version; it stops at the first group that trains. Failure: as a reader's.
"""

from __future__ import annotations

from collections import Counter

from tracegrad.schemas.alarms import untrained_text
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, why_excluded
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.batch.groups import GroupLimits, above, judge, why_untrained

from ..run.wiring import Wiring

__all__ = ["why_nothing_trains"]

_ANY_VOCABULARY = 2**31
"""check_vocabulary has looked at it."""


def why_nothing_trains(into: Wiring) -> str:
    """Empty where the trainer of this run would find a call in the loss, and where it repeats another's steps."""
    history = into.run_dir.history
    if history is None or history.mode == "same":
        return ""
    policy, rows = into.settings.policy.name, into.settings.trainer.max_row_tokens
    limits = GroupLimits(policy=policy, vocabulary=_ANY_VOCABULARY, max_row_tokens=rows)
    groups, members, calls = Counter[str](), Counter[str](), Counter[str]()
    for record in read_to_end(into.log(), into.topics.name(Topic.TRANSITIONS)):
        verdict = judge(record, limits)
        if (group := verdict.group) is None:
            groups[verdict.reason] += 1
            continue
        reason = why_untrained(group, history.run)
        if history.mode == "filter" and not reason:
            group = above(group, history.config.bound)
        if not reason and any(row.loss_mask.any() for row in group.rows):
            return ""
        groups[reason or (Reason.NO_TOKENS if group.rows else Reason.ALL_MEMBERS_EXCLUDED)] += 1
        members.update(one.excluded for one in group.summary.members if one.excluded)
        calls.update(turn.masked for turn in group.turns.values() if turn.masked)
    num_calls, num_episodes, alone = _recorded(into, policy)
    if not groups:
        groups, members = Counter({Reason.ALL_MEMBERS_EXCLUDED.value: 1}), alone
    why = untrained_text(groups, members, calls)
    return (
        f"nothing to train: {num_calls} calls of {policy} in {num_episodes} episodes, none of them in the loss, so no "
        f"version is published. {why}"
    )


def _recorded(into: Wiring, policy: str) -> tuple[int, int, Counter[str]]:
    """Calls of the policy, the episodes, and why these are in no group, if they are not; none of what is held out."""
    num_calls, num_episodes, reasons = 0, 0, Counter[str]()
    for record in read_to_end(into.log(), into.topics.name(Topic.EPISODES)):
        try:
            episode = EPISODES.decode(record.value)
        except RecordError:
            continue
        if episode.purpose is Purpose.VALIDATION:
            continue
        num_episodes += 1
        num_calls += sum(call.policy == policy for call in episode.calls)
        reasons[why_excluded(episode, policy) or "without_group"] += 1
    return num_calls, num_episodes, reasons
