"""What a source run trained, by its own records: steps, rollbacks and versions, in order, under numbers of this run.

In: the values of the source's `weights` and `training_steps`. Out: `SourceRecord`. Pure but for `read_record`. A run
that repeats the source publishes a version for each of the source's that led to its last one, numbered without gaps:
the source's numbers have some, where it lost checkpoints and trained otherwise. What the source undid so is left out, a
rollback to it cannot be repeated.
Failure: ConfigurationError, when the records do not fit each other: a step is gone, a rollback leads nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tracegrad.schemas.errors import ConfigurationError, RecordError
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep, surviving_steps
from tracegrad.schemas.records.weights import WEIGHTS, Lineage, VersionManifest, WeightFile


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of the source."""

    step: TrainingStep
    started_from: int
    """The source's number of the version that it started from: what its tokens' staleness was counted to."""
    version: int
    """This run's number of the version that was the newest after it."""

    @property
    def group_ids(self) -> frozenset[str]:
        """All that it consumed."""
        return frozenset(self.step.group_ids) | self.step.excluded_ids.keys()

    @property
    def excluded_before(self) -> dict[str, str]:
        """What was excluded before the step was tried: of one without an update, less what that excluded."""
        skipped = self.step.skipped
        return {id_: reason for id_, reason in self.step.excluded_ids.items() if not skipped or reason != skipped}


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A source's training."""

    steps: tuple[RecordedStep, ...]
    rollbacks: tuple[tuple[int, ...], ...]
    """[s] after s steps: to which versions, this run's numbers, in order."""
    weights: Mapping[int, WeightFile]
    """This run's number of a version -> its weights in the source; of those whose manifest is known."""
    manifests: Mapping[int, VersionManifest]
    """The source's, by its own numbers."""

    def num_rollbacks(self, step: int) -> int:
        """Those after fewer than `step` steps."""
        return sum(map(len, self.rollbacks[:step]))

    def is_needed(self, version: int) -> bool:
        """Whether a rollback leads to it."""
        return any(version in after for after in self.rollbacks)

    def depends_on(self, own: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """What its steps depended on and is another thing here, by key; keys that one of both does not tell are left
        out."""
        told = {
            key: dict.fromkeys(one.step.depends_on.get(key, value) for one in self.steps) for key, value in own.items()
        }
        return {key: (*were,) for key, were in told.items() if [*were] != [own[key]]}

    def differs(self, manifest: VersionManifest) -> bool:
        """Whether this run's version has other weights than the source's; False where that is not known."""
        return self.weights.get(manifest.version, manifest.weights) != manifest.weights


def read_record(path: str, policy: str) -> SourceRecord:
    """What `History.record` names. Raises ConfigurationError; OSError when it is not there."""
    with Path(path).open("rb") as lines:
        return fold_record((line.rstrip(b"\n") for line in lines), policy)


def fold_record(values: Iterable[bytes], policy: str) -> SourceRecord:
    """A source's record of one policy, from the values of `weights` and `training_steps`, each in its order.

    A value that is no record of either is passed over, as all readers do; what it said is then missing.
    """
    lineage, found = Lineage(policy), list[TrainingStep]()
    for value in values:
        try:
            one = TRAINING_STEPS.decode(value)
            if isinstance(one, TrainingStep) and one.policy == policy:
                found.append(one)
        except RecordError:
            try:
                lineage.fold(WEIGHTS.decode(value))
            except RecordError:
                continue
    return _numbered(surviving_steps(found), lineage.versions)


def _numbered(steps: list[TrainingStep], manifests: Mapping[int, VersionManifest]) -> SourceRecord:
    if [step.step for step in steps] != [*range(1, len(steps) + 1)] or not steps:
        raise ConfigurationError(
            f"expected the source's steps 1 to {len(steps) or 'N'} on `training_steps`, got "
            f"{_ranges([step.step for step in steps])}: without each of them (retention?) it cannot be repeated; "
            "--mode offline needs none"
        )
    numbers = {0: 0}  # the source's -> this run's
    made, rollbacks = list[RecordedStep](), list[tuple[int, ...]]()
    at = 0  # the source's present version
    for step in (*steps, None):
        until = step.version if step is not None else max(manifests, default=at)
        after = sorted(
            (one for one in manifests.values() if one.step == len(made) and at < one.version <= until),
            key=lambda one: one.version,
        )
        led_to = list[int]()
        for one in after:  # one by one: the second may go back to what the first made
            led_to.append(_content(one, numbers))
            at = one.version
            numbers[at] = len(numbers)
        rollbacks.append(tuple(led_to))
        if step is None:
            break
        _check_base(step, at, manifests)
        started_from, at = at, step.version
        if at != started_from:
            numbers[at] = len(numbers)
        made.append(RecordedStep(step, started_from, numbers[at]))
    weights = {numbers[number]: one.weights for number, one in manifests.items() if number in numbers and one.weights}
    return SourceRecord(tuple(made), tuple(rollbacks), weights, manifests)


def _content(manifest: VersionManifest, numbers: Mapping[int, int]) -> int:
    if manifest.base_version not in numbers:
        raise ConfigurationError(
            f"expected the source's rollback after step {manifest.step} to go back to a version that its steps lead "
            f"to, got version {manifest.base_version}, which it trained before it lost a checkpoint; --mode offline "
            "needs none"
        )
    return numbers[manifest.base_version]


def _check_base(step: TrainingStep, at: int, manifests: Mapping[int, VersionManifest]) -> None:
    """Also a step that led to no version tells one: that from which it started."""
    manifest = manifests.get(step.version)
    if manifest is None:
        base = at if step.is_updated and not step.num_unpublished else step.version
    else:
        base = manifest.base_version if manifest.step == step.step else step.version
    if base != at:
        raise ConfigurationError(
            f"expected the source's step {step.step} to start from version {at}, got {base}: a rollback between is not "
            "on its `weights` (retention?); --mode offline needs none"
        )


def _ranges(numbers: list[int]) -> str:
    """`1-3, 7`."""
    told: list[list[int]] = []
    for number in numbers:
        if told and number == told[-1][-1] + 1:
            told[-1][1:] = [number]
        else:
            told.append([number])
    return ", ".join("-".join(map(str, run)) for run in told) or "none"
