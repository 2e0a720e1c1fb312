"""The source that repeats another run's training: the same groups in the same steps, the same rollbacks.

In: the other run's record (record.py), and its transitions in its order, each group once. Out: batches that lead to its
weights, bit for bit, where start model, settings, seed, torch and the kind of machine are equal; versions are this
run's own. Invariant: a step trains exactly what the source's step of that number trained and excludes what that
excluded, whatever the offsets; staleness is counted among the source's own versions, by which it was judged. What a
kill undid is done again: rollbacks are counted in the checkpoint, as steps are.
On failure: ConfigurationError names the step and what differs, before anything of it is trained or kept. Weights that
differ are a warning, at the first version that has others, for they are the machine's; what is known of it is named at
the start. Of the start model they are an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import REPLAY_STEP, REPLAY_STEPS, Metrics
from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.records.transitions import group_id_of

from ..batch.batches import Batch, OpenBatch
from ..batch.rows import rollout_tokens
from ..config import TrainerConfig
from ..source import BatchReader, Source
from ..store.checkpoint import CheckpointState, Progress
from ..store.policy_log import PolicyLog
from .config import History
from .record import RecordedStep, SourceRecord

_log = logging.getLogger(__name__)
_OF_THE_START = {"dtype", "publish_dtype"}
"""In which version 0 is written, that no step has touched."""
_NAMED = 5
"""Groups named of those that differ."""


@dataclass
class SameSource(Source):
    """Of mode `same`."""

    history: History
    record: SourceRecord
    config: TrainerConfig
    depends_on: Mapping[str, str]
    """What this run's bits depend on beside its batches and what it learns by."""
    reader: BatchReader
    policy_log: PolicyLog
    metrics: Metrics
    is_repeat = True

    def __post_init__(self) -> None:
        self._ahead: Record | None = None
        """Read, but of a later step."""
        self._is_unequal = False
        own = self.depends_on
        self._unequal = {key: (was, own[key]) for key, was in self.record.depends_on(own).items()}
        if self._unequal:
            told = "; ".join(f"{key} {', '.join(was)} -> {now}" for key, (was, now) in self._unequal.items())
            _log.warning("bits depend on what differs from the source, so weights may differ in their last: %s", told)

    def is_last(self, step: int, next_offset: int) -> bool:
        return step >= len(self.record.steps)

    def is_due(self, state: CheckpointState) -> bool | None:
        return self._due(state).version != state.version

    def is_needed(self, version: int) -> bool:
        return self.record.is_needed(version)

    def rollbacks(self, state: CheckpointState) -> Sequence[int]:
        return self.record.rollbacks[state.step][state.rollbacks - self.record.num_rollbacks(state.step) :]

    def _due(self, state: CheckpointState) -> RecordedStep:
        return self.record.steps[state.step]

    def read(self, progress: Progress, look: Callable[[], None]) -> Batch | None:
        state = progress.state
        if self.is_last(state.step, state.next_offset):
            return None  # its last rollbacks are done
        due = self._due(state)
        batch = self.reader.open(progress, max(1, len(due.group_ids)))
        known = due.group_ids | progress.consumed.keys()
        while batch.num_seen < len(due.group_ids) and batch.next_offset < self.history.end_offset:
            record = self._ahead or self.reader.next_before(self.history.end_offset, look)
            if record is None:
                return None
            named = group_id_of(record.value)
            self._ahead = record if named is not None and named not in known else None
            if self._ahead is not None:
                break
            self.reader.add_record(batch, record)
        return self._close(batch, due)

    def _close(self, batch: OpenBatch, due: RecordedStep) -> Batch:
        """The source's batch, of what the history has of it."""
        made = batch.close(
            run=self.history.run,
            version=due.started_from,
            max_staleness=self.config.max_staleness,
            manifests=self.record.manifests,
        )
        lost = {id_: why for id_, why in due.excluded_before.items() if id_ not in made.consumed}
        if lost:
            _log.warning(
                "step %d: %d groups that the source excluded (%s) are not in the history, and change nothing",
                due.step.step,
                len(lost),
                ", ".join(sorted(set(lost.values()))),
            )
        made = replace(made, excluded=made.excluded | lost, consumed=(*made.consumed, *lost))
        trained = due.group_ids - due.excluded_before.keys()
        _require(due, trained, set(made.group_ids), "to train groups")
        _require(due, set(due.excluded_before.items()), set(made.excluded.items()), "to exclude")
        if due.step.skipped:
            return made  # nothing tells the order but the history
        _require_tokens(due, sum(rollout_tokens(made.groups).values()))
        place = {id_: at for at, id_ in enumerate(due.step.group_ids)}
        return replace(made, groups=tuple(sorted(made.groups, key=lambda group: place[group.summary.group_id])))

    def check(self, record: TrainingStep) -> bool:
        due = self.record.steps[record.step - 1]
        _require(due, {due.step.skipped}, {record.skipped}, "to be skipped as")
        if due.version != record.version:
            raise ConfigurationError(
                f"step {record.step}: expected it to lead to version {due.version}, got {record.version}: this run's "
                "own steps did not repeat bit for bit after a kill; start it anew under another name"
            )
        return True

    def observe(self, state: CheckpointState) -> None:
        """Tells how far it is, and compares the present version with the source's of the same place."""
        self.metrics.set(REPLAY_STEP, state.step)
        self.metrics.set(REPLAY_STEPS, len(self.record.steps))
        manifest = self.policy_log.lineage.versions.get(state.version)
        if self._is_unequal or manifest is None or not self.record.differs(manifest):
            return
        if state.version == 0 and not self._unequal.keys() & _OF_THE_START:
            raise ConfigurationError(
                "mode 'same': expected the start model of the source, got one with other weights: put its bytes where "
                "[policy] model points, or take --mode offline"
            )
        self._is_unequal = True
        _log.warning(
            "version %d, after step %d: its weights are not the source's, bit for bit; the steps are the same, and the "
            "start model, the machine or a release of what it runs is another",
            state.version,
            state.step,
        )


def _require_tokens(due: RecordedStep, own: int) -> None:
    """That as many tokens train. Raises ConfigurationError."""
    if due.step.num_tokens != own:
        raise ConfigurationError(
            f"step {due.step.step}: expected {due.step.num_tokens} trained tokens as in the source, got {own}: masks "
            "are made anew by the rules and the release of now, under which other answers train (docs/replay.md, "
            "Masks): take --mode offline, which trains what they leave"
        )


def _require(due: RecordedStep, source: Any, own: Any, what: str) -> None:
    """That two sets are equal. Raises ConfigurationError."""
    if source == own:
        return
    words = []
    for side, only in (("only the source", source - own), ("only this run", own - source)):
        if only:
            told = ", ".join(" ".join(one) if isinstance(one, tuple) else one or "no" for one in sorted(only)[:_NAMED])
            words.append(f"{side} does: {told}" + (f" and {len(only) - _NAMED} more" if len(only) > _NAMED else ""))
    raise ConfigurationError(
        f"step {due.step.step}: expected {what} as the source did; {'; '.join(words)}. The history "
        "is not what it trained on: was it folded by other rules, or by another release?"
    )
