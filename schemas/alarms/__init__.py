"""Alarms: what the last steps say of a run that goes wrong, most of it before the reward falls.

In: a run's records of `training_steps`, in order, which a starting trainer reads again, so that a restart changes no
alarm. Out: names of the alarms that hold after the last. Pure, and here, so that any room judges alike. What drifts is
the mean of the last 5 steps against that of the up to 20 before: it must differ by a share and by four standard errors,
so that noise is no alarm; until there are 15 steps none of these holds. The thresholds are ours unless a source is
named; docs/watching.md says how often they are wrong. NOTHING_TRAINS also names the commonest reason, with its share,
its sentence and its remedy (reasons.py): of steps, or of closed groups, whose counts by reason are given. A group
counts as untrained only when none of its members has a call of the policy that is in the loss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median, variance
from typing import NamedTuple

from ..reasons import Reason, row_of
from ..records.episodes import Episode, why_excluded
from ..records.training import TrainingStep

NOTHING_TRAINS = "nothing_trains"
IN_A_ROW = 3
"""Steps without a trained token, or so many steps' closed groups: one batch may be odd."""

_RECENT, _BEFORE, _BEFORE_LEAST = 5, 20, 10
NUM_STEPS = _RECENT + _BEFORE
"""That are looked at."""
_STANDARD_ERRORS = 4.0


def _means(values: Iterable[float | None]) -> tuple[float, float, float] | None:
    """The means before and of late, and the standard error of their difference; None while there are too few."""
    known = [*values]
    before, recent = ([v for v in part if v is not None] for part in (known[:-_RECENT], known[-_RECENT:]))
    if len(before) < _BEFORE_LEAST or len(recent) < IN_A_ROW:
        return None
    error = math.sqrt(variance(before) / len(before) + variance(recent) / len(recent))
    return fmean(before), fmean(recent), error


def _moves(values: Iterable[float | None]) -> tuple[float, float] | None:
    """The means, where they differ by more than noise."""
    means = _means(values)
    return means[:2] if means is not None and abs(means[1] - means[0]) > _STANDARD_ERRORS * means[2] else None


def _rises(steps: Sequence[TrainingStep]) -> bool:
    """Whether the final reward's mean of late is above that before, by whatever."""
    means = _means(step.reward for step in steps)
    return means is not None and means[1] > means[0]


def _halves(values: Iterable[float | None]) -> bool:
    means = _moves(values)
    return means is not None and means[1] < 0.5 * means[0]


def _grows(values: Iterable[float | None]) -> bool:
    means = _moves(values)
    return means is not None and means[1] - means[0] > 0.5 * abs(means[0])


def echo_trap(steps: Sequence[TrainingStep]) -> bool:
    """`reward_std` halves while the reward does not rise: rollouts of a task become alike, which in multi-turn training
    comes before the reward falls (RAGEN's echo trap, arXiv:2504.20073). Where the reward rises, it falls by right.
    """
    return _halves(step.reward_std for step in steps) and not _rises(steps)


def entropy_collapse(steps: Sequence[TrainingStep]) -> bool:
    """`entropy` halves while the reward does not rise: what is explored is given up for nothing (arXiv:2503.14476,
    arXiv:2505.22617).
    """
    return _halves(step.entropy for step in steps) and not _rises(steps)


def reward_collapse(steps: Sequence[TrainingStep]) -> bool:
    """`reward` falls by more than the std within groups was before: the natural unit of rewards of any scale. Groups of
    one, as rated conversations are, have none: there it falls to less than half.
    """
    means = _moves(step.reward for step in steps)
    stds = [step.reward_std for step in steps[:-_RECENT] if step.reward_std is not None]
    least = fmean(stds) if stds else 0.5 * abs(means[0]) if means is not None else 0.0
    return means is not None and means[0] - means[1] > least


def rules_alone(steps: Sequence[TrainingStep]) -> bool:
    """What a rule pays (`reward_parts`, AIR) grows by half while the final reward does not rise: the agent found
    what is paid beside the task. Not judged before there are 25 steps: a rule is learnt before the task is, by right.
    """
    rules = {rule for step in steps for rule in step.reward_parts}
    if len(steps) < NUM_STEPS or _rises(steps):
        return False
    return any(_grows(step.reward_parts.get(rule, 0.0) for step in steps) for rule in rules)


def _updates(steps: Sequence[TrainingStep]) -> list[TrainingStep]:
    return [step for step in steps if step.is_updated]


def gradient_spike(steps: Sequence[TrainingStep]) -> bool:
    """`grad_norm` is ten times its median (arXiv:2504.20073 names spikes as the other early sign)."""
    norms = [step.grad_norm for step in _updates(steps)]
    return len(norms) > _BEFORE_LEAST and steps[-1].is_updated and norms[-1] > 10.0 * median(norms[:-1])


def ess_low(steps: Sequence[TrainingStep]) -> bool:
    """`ess` below a half, three updates in a row: the usual bound at which weighted samples are drawn anew (Liu and
    Chen 1995); here: sampler and policy are too far apart.
    """
    last = _updates(steps)[-IN_A_ROW:]
    return len(last) == IN_A_ROW and all(step.ess < 0.5 for step in last)


def clip_high(steps: Sequence[TrainingStep]) -> bool:
    """`clip_fraction` above .3, three updates in a row; GSPO clips half of that by design (arXiv:2507.18071)."""
    last = _updates(steps)[-IN_A_ROW:]
    return len(last) == IN_A_ROW and all(step.clip_fraction > 0.3 for step in last)


def nothing_trains(steps: Sequence[TrainingStep]) -> bool:
    """No token was trained, three steps in a row, for whatever reason: masked, excluded, or of equal rewards."""
    last = steps[-IN_A_ROW:]
    return len(last) == IN_A_ROW and not any(step.num_tokens for step in last)


ALARMS: Mapping[str, tuple[Callable[[Sequence[TrainingStep]], bool], str]] = {
    "echo_trap": (echo_trap, "rewards within groups differ half as much as before, and do not rise"),
    "entropy_collapse": (entropy_collapse, "the entropy fell to less than half, and the reward does not rise"),
    "reward_collapse": (reward_collapse, "the reward fell by more than the std within groups"),
    "rules_alone": (rules_alone, "a rule pays more and more, and the final reward does not rise"),
    "gradient_spike": (gradient_spike, "the gradient norm is more than ten times its median"),
    "ess_low": (ess_low, "the effective sample size is below half of the tokens"),
    "clip_high": (clip_high, "the surrogate's bounds hold back more than three tokens in ten"),
    NOTHING_TRAINS: (nothing_trains, "no token was trained, three steps in a row"),
}
"""Name -> whether it holds after the last of some steps, and its words."""


def alarms_of(steps: Sequence[TrainingStep]) -> tuple[str, ...]:
    """The alarms that hold after the last of the steps, of which the newest NUM_STEPS are looked at."""
    return tuple(name for name, (holds, _) in ALARMS.items() if holds(steps[-NUM_STEPS:]))


def alarm_text(name: str, steps: Sequence[TrainingStep]) -> str:
    """An alarm's words after the last of the steps; of NOTHING_TRAINS also why, and what to do."""
    return _untrained_steps_text(steps) if name == NOTHING_TRAINS else ALARMS[name][1]


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
        self._groups[Reason.ALL_MEMBERS_EXCLUDED if all(one.excluded for one in members) else Reason.NO_TOKENS] += 1
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


def _untrained_steps_text(steps: Sequence[TrainingStep]) -> str:
    """In words, of a run's steps of which the last IN_A_ROW trained no token."""
    last, before = steps[-IN_A_ROW:], steps[-IN_A_ROW - 1 : -IN_A_ROW]
    groups = Counter(last[-1].accounting.excluded)
    groups.subtract(before[0].accounting.excluded if before else {})
    members = sum((Counter(step.members_excluded) for step in last), Counter[str]())
    why = untrained_text(+groups, members, sum((Counter(step.masked) for step in last), Counter[str]()))
    return f"the last {len(last)} steps trained no token: {why}"


def untrained_text(groups: Counter[str], members: Counter[str], calls: Counter[str]) -> str:
    """The commonest reason of the groups; where that only says that nothing was left, that of what was left out."""
    reason, words = _commonest(groups, "groups")
    beneath = {
        Reason.ALL_MEMBERS_EXCLUDED.value: (members, "their excluded members"),
        Reason.NO_TOKENS.value: (calls, "their masked calls"),
    }
    counts, of = beneath.get(reason, (Counter[str](), ""))
    if counts:
        reason, finer = _commonest(counts, of)
        words = f"{words}, {finer}"
    row = row_of(reason)
    return f"{words}: {row.sentence} {row.remedy.removesuffix('.')}" if row.remedy else words


def _commonest(counts: Counter[str], of: str) -> tuple[str, str]:
    if not counts:
        return "", f"no reason is told of {of}"
    reason = min(counts, key=lambda one: (-counts[one], one))
    return reason, f"{counts[reason] / counts.total():.0%} of {of} `{reason}`"
