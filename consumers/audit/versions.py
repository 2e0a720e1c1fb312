"""Steps, batches and versions against each other: who trained what, and whether it is all still there.

In: Evidence, the surviving steps; a function that looks at a version's files. Out: `what: id` lines. Invariant: a step
counts only if the groups that it names are those of its interval on `transitions`, its hash that of their bytes, and
the version that it led to is on `weights`, and it tells how many updates none holds; a version only if a step, a
rollback or, for number 0, the beginning of the run led to it; what sampled, if it was published and acknowledged; a
held-out pass, if it was begun, asked for what it names and, once its rollouts are over, has its score. Judged only
where retention has taken nothing; what a living run has not finished is let pass. Failure: none.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.training import TrainingStep, hash_batch
from tracegrad.schemas.records.versions import parse_label
from tracegrad.schemas.records.weights import VersionManifest, folder_of
from tracegrad.schemas.topics import Topic

from .evidence import Evidence
from .links import gaps


class _Standing(NamedTuple):
    """Of the weights after a step."""

    version: int
    num_unpublished: int
    place: tuple[int, int]
    """Its number and next offset."""


Look = Callable[[VersionManifest], object]
"""Looks at a version's files. Raises RecordError where one is not as its manifest says."""


def check_versions(
    seen: Evidence, steps: Sequence[TrainingStep], *, is_live: bool, look: Look | None, root: str = "", num_kept: int
) -> Iterator[str]:
    """Every step and version that does not fit the others."""
    yield from _order(steps)
    if Topic.TRANSITIONS not in seen.expired:
        yield from _intervals(seen, steps)
    if Topic.WEIGHTS not in seen.expired:
        yield from _steps_to_versions(seen, steps)
        yield from _numbers(seen)
        if Topic.TRAINING_STEPS not in seen.expired:
            yield from _versions_to_steps(seen, steps, is_live=is_live)
        yield from _served(seen)
        yield from _held_out(seen, is_live=is_live)
        if look is not None:
            yield from _files(seen, look, root, num_kept=num_kept, is_live=is_live)


def _order(steps: Sequence[TrainingStep]) -> Iterator[str]:
    expected = 0
    for number, step in enumerate(steps, start=1):
        if step.step != number:
            yield f"step missing before: step {step.step}"
            break
        if step.begin_offset != expected:
            yield f"gap in the offsets before: step {step.step}"
        expected = step.next_offset


def _intervals(seen: Evidence, steps: Sequence[TrainingStep]) -> Iterator[str]:
    """Each step's groups are those of its records, but for groups that came before."""
    offsets = sorted(seen.transitions)
    before: set[str] = set()
    for step in steps:
        held = offsets[bisect_left(offsets, step.begin_offset) : bisect_left(offsets, step.next_offset)]
        num_gone = step.next_offset - step.begin_offset - len(held)
        if num_gone:
            yield f"{num_gone} offsets that are not on transitions consumed by: step {step.step}"
        there = {group for offset in held if (group := seen.transitions[offset]) is not None} - before
        named = {*step.group_ids, *step.excluded_ids}
        for group in sorted(named - there):
            yield f"group named by step {step.step} but not in its interval of transitions: {group}"
        for group in sorted(there - named):
            yield f"group in the interval of step {step.step} but not named by it: {group}"
        for group in sorted(seen.given_back.get((step.epoch, step.step), set()) - step.excluded_ids.keys()):
            yield f"group given back but not excluded by step {step.step}: {group}"
        is_judged = not (num_gone or (Topic.DEAD_LETTERS in seen.expired and None in map(seen.transitions.get, held)))
        if is_judged and hash_batch(_judged(seen, step, held, before)) != step.batch_hash:
            yield f"batch_hash that is not that of its records on transitions: step {step.step}"
        before |= there | named


def _judged(
    seen: Evidence, step: TrainingStep, held: Iterable[int], before: Iterable[str]
) -> Iterator[tuple[bytes, str]]:
    """What the trainer hashed of the records at these offsets, as the step tells it."""
    known = set(before)
    for offset in held:
        group = seen.transitions[offset]
        reason = step.excluded_ids.get(group or "", seen.unusable.get(offset, ""))
        if group in known:
            reason = Reason.DUPLICATE
        elif group in step.group_ids or reason == step.skipped:
            reason = ""
        if group is not None:
            known.add(group)
        yield seen.transition_digests[offset], reason


def _steps_to_versions(seen: Evidence, steps: Sequence[TrainingStep]) -> Iterator[str]:
    """Each step led to the version that it names, or names the one that it started from and counts what it lacks."""
    before = _Standing(0, 0, (0, 0))
    for step in steps:
        manifest = seen.lineage.versions.get(step.version)
        after = _Standing(step.version, step.num_unpublished, (step.step, step.next_offset))
        if manifest is None:
            if step.is_updated:
                yield f"version trained but not on weights: {step.version}"
        elif (manifest.step, manifest.next_offset) == after.place:
            if step.num_unpublished:
                yield f"step that led to a version and tells of updates without one: step {step.step}"
        elif step.is_updated and not step.num_unpublished:
            yield (
                f"step that did not lead to the version that it names: step {step.step} up to offset "
                f"{step.next_offset}, version {step.version} is of step {manifest.step} up to {manifest.next_offset}"
            )
        elif before.place[0] == step.step - 1:
            yield from _between_versions(before, step, manifest)
        before = after


def _between_versions(before: _Standing, step: TrainingStep, manifest: VersionManifest) -> Iterator[str]:
    """Of a step that led to no version: it names that of the step before, or the one that was rolled back to since."""
    is_same = step.version == before.version
    if not is_same and (manifest.step, manifest.next_offset) != before.place:
        yield f"step that did not start from the version that it names: step {step.step}, version {step.version}"
    due = step.is_updated + (before.num_unpublished if is_same else 0)
    if step.num_unpublished != due:
        yield f"updates without a version: step {step.step} tells of {step.num_unpublished}, there are {due}"


def _numbers(seen: Evidence) -> Iterator[str]:
    """Versions count from 0, epochs from 1, neither with a hole."""
    newest = seen.lineage.newest
    for gap in gaps(seen.lineage.versions, 0, newest.version if newest is not None else 0):
        yield f"version missing on weights: {gap}"
    for gap in gaps(seen.epochs, 1, max(seen.epochs, default=0)):
        yield f"epoch that nobody claimed: {gap}"


def _versions_to_steps(seen: Evidence, steps: Sequence[TrainingStep], *, is_live: bool) -> Iterator[str]:
    led_to = {step.version for step in seen.steps if step.policy == seen.lineage.policy}
    last = steps[-1].step if steps else 0
    for number, manifest in sorted(seen.lineage.versions.items()):
        # A trainer that was killed before its record made the step again, and went on above this version.
        was_redone = any(step.step == manifest.step and step.epoch > manifest.epoch for step in steps)
        if number == 0 or number in led_to or was_redone or manifest.base_version in seen.rolled_back_to:
            continue
        if not (is_live and manifest.step > last):
            yield f"version published but its step is not on training_steps: version {number}, step {manifest.step}"


def _served(seen: Evidence) -> Iterator[str]:
    """What samples was published, and acknowledged before it did."""
    published = {manifest.label for manifest in seen.manifests}
    runs = {manifest.run for manifest in seen.manifests}
    for label, call in sorted(seen.sampled.items()):
        version = parse_label(label)
        if version is None or version.run not in runs:
            continue  # raw topics are shared: a captured call may be of another run's engine
        if label not in published:
            yield f"version sampled call {call} but is not on weights: {label}"
        if label not in seen.acknowledged and Topic.WEIGHT_ACKS not in seen.expired:
            yield f"version sampled call {call} but is not on weight_acks: {label}"
    for label, engines in sorted(seen.acknowledged.items()):
        if label not in published:
            yield f"version acknowledged by {', '.join(sorted(engines))} but not on weights: {label}"


def _held_out(seen: Evidence, *, is_live: bool) -> Iterator[str]:
    """Passes count from 0, each is begun and then scored, and every held-out group is of one."""
    passes = seen.lineage.held_out.by_number
    for gap in gaps(passes, 0, max(passes, default=0)):
        yield f"held-out pass that nobody began: {gap}"
    ended = {episode.rollout for episode in seen.episodes.values() if episode.is_final and episode.is_validation}
    asked = dict(seen.asked.get(Purpose.VALIDATION, {}))
    order = sorted(asked)
    for number, held_out in sorted(passes.items()):
        if number not in seen.passes_begun:
            yield f"held-out pass that has a score and was not begun: {number}"
        begin, end = (bisect_left(order, held_out.first_group + places) for places in (0, held_out.num_tasks))
        groups = [asked.pop(index, {}) for index in order[begin:end]]
        rollouts = [rollout for members in groups for rollout, _ in members.values()]
        is_over = len(rollouts) == held_out.num_tasks * held_out.num_samples and ended.issuperset(rollouts)
        if held_out.score is None:
            if number < max(passes) or (is_over and not is_live):
                yield f"held-out pass that is over and has no score: {number}"
        elif held_out.score.version is not None and held_out.score.version not in seen.lineage.versions:
            yield f"version of held-out pass {number} is not on weights: {held_out.score.version}"
    if Topic.ROLLOUTS not in seen.expired:
        yield from (f"held-out group that no pass asked for: {index}" for index in sorted(asked))


def _files(seen: Evidence, look: Look, root: str, *, num_kept: int, is_live: bool) -> Iterator[str]:
    """Folders of older versions are removed as new ones are written, the oldest first and whole, but for version 0 and
    the best one; what is there has to be sound."""
    lineage, held_out = seen.lineage, seen.lineage.held_out
    versions = {number: replace(one, uri=folder_of(one.uri, root)) for number, one in lineage.versions.items()}
    there = {number for number, manifest in versions.items() if os.path.isdir(manifest.uri)}
    newest = max(versions, default=0)
    # One that was the best until lately may be there yet, alone; another stands in the row anyway.
    lone = {0, *(one.score.version for one in held_out.by_number.values() if one.score is not None)}
    # `keep_versions` may have been less before: what is there tells how many were kept.
    oldest = min(there - lone, default=newest) if num_kept else 0
    for number, manifest in sorted(versions.items()):
        was_retired = 0 < number < min(oldest, newest) and not held_out.is_held(number)
        if number not in there and (was_retired or is_live):
            continue
        try:
            look(manifest)
        except RecordError as error:
            yield f"files of version {number} on weights: {error}"
