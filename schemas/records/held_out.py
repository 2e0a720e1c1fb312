"""Held-out passes, on `weights`: what tasks makes of each, what it was worth, and which version is the best.

In: two records a pass, one that it begins and one with its score. Out: the passes, folded alike by tasks, which goes on
where the log ends, by the trainer, which keeps the best version's folder, and by views. Invariant: of a pass the first
word of each kind counts, so that a restart, or a second process, neither skips nor doubles one. Failure: none.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..ids import RunHash

Number = Annotated[int, Meta(ge=0, lt=10**12)]


class VersionShare(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a score is one version's."""

    version: int
    share: float
    """Of the mean, 1 in all: each task counts alike, so does each sample within it, and within a sample each token."""


class PassAt(msgspec.Struct, frozen=True, kw_only=True):
    """pass@k: the chance that one of k samples of a task passes."""

    k: int
    share: float


class HeldOutScore(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass was worth. Example: HeldOutScore(mean=.52, low=.43, high=.61, num_scored=128, version=21, ...).

    It is a score of the versions that sampled it, which may be several: training goes on meanwhile.
    """

    mean: float | None
    """Over the tasks with a reward, each the mean of its scored samples; None: there is none."""
    low: float | None
    high: float | None
    """95 % confidence interval: Wilson's when each task's mean is 0 or 1, else normal, over tasks."""
    num_scored: int
    """Tasks with a reward; the others are left out, never 0."""
    pass_at: tuple[PassAt, ...] = ()
    """By k; empty where a task is sampled once."""
    versions: tuple[VersionShare, ...] = ()
    """Whose score it is, the oldest first."""
    version: int | None
    """The one with the greatest share, of equal ones the older: by which the pass is judged. None: none sampled."""


class HeldOutPass(msgspec.Struct, frozen=True, kw_only=True, tag="held_out_pass"):
    """All held-out tasks once. Example: HeldOutPass(number=2, step=20, since_version=20, first_group=256, ...)."""

    schema: str = "held_out_pass/1"
    policy: str
    run: RunHash
    number: Number
    """From 0, before training, without gaps."""
    step: Number
    """The batch after which it was due."""
    since_version: Number
    """Served when it began: from here on the trainer keeps what it may turn out to be a score of."""
    first_group: Number
    """Its tasks are the validation groups first_group .. first_group + num_tasks - 1, in the file's order."""
    num_tasks: Number
    num_samples: Number
    """Rollouts of each."""
    score: HeldOutScore | None = None
    """None: it begins. A second record repeats the first one with the score."""


class HeldOutPasses:
    """The passes of one policy, folded in order."""

    def __init__(self) -> None:
        self.by_number: dict[int, HeldOutPass] = {}
        """With its score once it has one."""

    def fold(self, record: HeldOutPass) -> bool:
        """Takes the next record. False: what it says was said before."""
        known = self.by_number.get(record.number)
        if known is not None and (known.score is not None or record.score is None):
            return False
        self.by_number[record.number] = record
        return True

    @property
    def newest(self) -> HeldOutPass | None:
        """The last that began."""
        return self.by_number[max(self.by_number)] if self.by_number else None

    @property
    def best(self) -> HeldOutPass | None:
        """The one of the greatest mean whose `score.version` is therefore kept; None before the first.

        Of equal means the older one: it came as far in fewer steps, nearer to the model that training started from,
        and chance among equals moves nothing. One that scored less than half of its tasks is no candidate: what an
        outage left of it may be the easy ones.
        """
        best: tuple[float, HeldOutPass] | None = None
        for _, one in sorted(self.by_number.items()):
            score = one.score
            if score is None or score.mean is None or score.version is None or 2 * score.num_scored < one.num_tasks:
                continue
            if best is None or score.mean > best[0]:
                best = score.mean, one
        return best[1] if best else None

    def is_held(self, version: int) -> bool:
        """Whether a version is the best one, or may yet prove to be: a pass that it may have sampled has no score."""
        best = self.best
        if best is not None and best.score is not None and version == best.score.version:
            return True
        return any(one.score is None and version >= one.since_version for one in self.by_number.values())
