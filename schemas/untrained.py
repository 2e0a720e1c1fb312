"""Why nothing trains: of steps, or of closed groups, without a trained token the commonest reason, its share, a remedy.

In: counts by reason, of groups, of their members, of their calls. Out: one sentence. Pure, and here, so that the
trainer, tasks and every view say the same. Invariant: a group counts as untrained only when none of its members has a
call of the policy that is in the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .records.episodes import Episode, why_excluded
from .records.training import TrainingStep

__all__ = [
    "ALL_EXCLUDED",
    "IN_A_ROW",
    "NO_TOKENS",
    "MemberOutcome",
    "UntrainedGroups",
    "untrained_steps_text",
    "untrained_text",
]

IN_A_ROW = 3
"""Steps without a trained token, or so many steps' closed groups: one batch may be odd."""
ALL_EXCLUDED = "all_members_excluded"
NO_TOKENS = "no_tokens"
_RATING = "a broken grader gives such rewards too: look at `tracegrad episodes`"
_LOST = "the client that hung up, or the gateway's log, says why"
REMEDIES: Mapping[str, str] = {
    "constrained": "the agent forces its answers (`response_format`, a forced tool): leave that out where it learns",
    "cut_sampling": "agents cut the distribution (top_p, top_k or the like): [select] sampling = 'forced'",
    "truncated": "answers end at the token limit: raise max_tokens, or [select] truncated = 'train'",
    "client_disconnected": _LOST,
    "outcome_unknown": _LOST,
    "superseded": "each answer was asked for again: raise the client's timeout",
    "missing_parent": "earlier calls of the conversations are not there: look at `tracegrad tail dead_letters`",
    "bad_temperature": "the agent samples greedily (temperature 0), which has no distribution to learn from: raise it",
    "aborted": "the attempts break off: look at the runner's log",
    "given_up": "the attempts break off: look at the runner's log",
    "no_calls": "the agent calls another endpoint, or none: does its client use OPENAI_BASE_URL?",
    "unscored": "no reward came: look at the grader, or at who rates",
    "too_large": "raise the key of [kafka.max_message_bytes] that the group's `detail` names",
    "too_many_open_bytes": "raise [streams] max_open_bytes",
    "no_advantage": f"rewards within each group are equal: tasks neither too hard nor solved are needed; {_RATING}",
    "no_spread": f"rewards within each group are equal: tasks neither too hard nor solved are needed; {_RATING}",
    "below_bound": "no final reward reaches [replay] bound: lower it, --set replay.bound=0.5",
    "without_group": "captured conversations train with [select] train = true alone",
    "stale": "samples are too old: lower [pace] staleness, or raise [trainer] max_staleness",
}
"""Reason of a call, a member or a group -> what to do."""


class MemberOutcome(NamedTuple):
    """What an episode gives its group to train on."""

    excluded: str
    """As `why_excluded`."""
    masked: tuple[str, ...]
    """Why calls of the policy leave the loss, of a member that is not excluded."""
    trains: bool
    """Whether a call of the policy is in the loss."""

    @classmethod
    def of(cls, episode: Episode, policy: str) -> MemberOutcome:
        """Judged by the record alone; credit may find numbers in it that cannot train."""
        if reason := why_excluded(episode, policy):
            return cls(reason, (), False)
        reasons = [call.masked for call in episode.calls if call.policy == policy]
        return cls("", tuple(filter(None, reasons)), not all(reasons))


class UntrainedGroups:
    """The fold of closed groups: those since the last of which a member could train."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.num = 0
        self._groups, self._members, self._calls = Counter[str](), Counter[str](), Counter[str]()

    def close(self, members: Sequence[MemberOutcome]) -> None:
        """One more group closed, with these."""
        if any(one.trains for one in members):
            self._reset()
            return
        self.num += 1
        self._groups[ALL_EXCLUDED if all(one.excluded for one in members) else NO_TOKENS] += 1
        self._members.update(one.excluded for one in members if one.excluded)
        self._calls.update(reason for one in members for reason in one.masked)

    def holds(self, groups_per_step: int) -> bool:
        """Whether they are as many as IN_A_ROW steps take."""
        return self.num >= IN_A_ROW * groups_per_step

    @property
    def text(self) -> str:
        """In words."""
        why = untrained_text(self._groups, self._members, self._calls)
        return f"none of the last {self.num} closed groups can train: {why}"


def untrained_steps_text(steps: Sequence[TrainingStep]) -> str:
    """In words, of a run's steps of which the last IN_A_ROW trained no token."""
    last, before = steps[-IN_A_ROW:], steps[-IN_A_ROW - 1 : -IN_A_ROW]
    groups = Counter(last[-1].accounting.excluded)
    groups.subtract(before[0].accounting.excluded if before else {})
    members = _sum(step.members_excluded for step in last)
    why = untrained_text(+groups, members, _sum(step.masked for step in last))
    return f"the last {len(last)} steps trained no token: {why}"


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return total


def untrained_text(groups: Counter[str], members: Counter[str], calls: Counter[str]) -> str:
    """The commonest reason of the groups; where that only says that nothing was left, that of what was left out."""
    reason, words = _commonest(groups, "groups")
    beneath = {ALL_EXCLUDED: (members, "their excluded members"), NO_TOKENS: (calls, "their masked calls")}
    counts, of = beneath.get(reason, (Counter[str](), ""))
    if counts:
        reason, finer = _commonest(counts, of)
        words = f"{words}, {finer}"
    return f"{words}: {REMEDIES.get(reason, 'docs/training.md and docs/streams.md list the reasons')}"


def _commonest(counts: Counter[str], of: str) -> tuple[str, str]:
    if not counts:
        return "", f"no reason is told of {of}"
    reason = min(counts, key=lambda one: (-counts[one], one))
    return reason, f"{counts[reason] / counts.total():.0%} of {of} `{reason}`"
