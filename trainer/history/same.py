"""The trainer that repeats another run's training: the same groups in the same steps, the same rollbacks.

In: the source's record (record.py), and its transitions in its order, each group once. Out: this run's own versions,
whose weights are the source's, bit for bit, where start model, settings, seed, torch and the kind of machine are equal.
Invariant: a step trains exactly what the source's step of that number trained and excludes what that excluded, whatever
the offsets; staleness is counted among the source's own numbers, by which it was judged. What a kill undid is done
again: rollbacks are counted in the checkpoint, as steps are.
On failure: ConfigurationError names the step and what differs, before anything of it is trained or kept. Weights that
differ are a warning, at the first version that has others, for they are the machine's; what is known of it is named at
the start. Of the start model they are an error.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.records.transitions import group_id_of

from ..batch.batches import Batch, OpenBatch
from ..batch.rows import rollout_tokens
from ..config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from .compare import OF_THE_MACHINE
from .record import RecordedStep, read_record
from .trainer import HistoryTrainer

__all__ = ["SameTrainer"]

_log = logging.getLogger(__name__)
_OF_THE_START = {"dtype", "publish_dtype"}
"""In which version 0 is written, that no step has touched."""
_TOLD = 5
"""Groups named of those that differ."""


class SameTrainer(HistoryTrainer):
    """Of mode `same`."""

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: AlgorithmConfig,
        alarms: AlarmsConfig,
        handles: TrainerHandles,
        **named: Any,
    ) -> None:
        """Alarms only warn: whatever went wrong in the source is to go wrong again."""
        assert handles.history is not None
        self._record = read_record(handles.history.record, handles.policy)
        self._ahead: Record | None = None
        """Read, but of a later step."""
        self._is_unequal = False
        super().__init__(config, algorithm, AlarmsConfig(), handles, **named)
        settings = self._learner.settings
        own = {**{key: settings[key] for key in OF_THE_MACHINE if key in settings}, **self._machine}
        self._unequal = {key: (was, own[key]) for key, was in self._record.depends_on(own).items()}
        if self._unequal:
            told = "; ".join(f"{key} {', '.join(was)} -> {now}" for key, (was, now) in self._unequal.items())
            _log.warning("bits depend on what differs from the source, so weights may differ in their last: %s", told)
        self._compare()

    # rollbacks

    @property
    def _is_done(self) -> bool:
        state = self._store.state
        return (state.step, state.rollbacks) == (len(self._record.steps), self._record.num_rollbacks(state.step + 1))

    def _is_needed(self, version: int) -> bool:
        return self._record.is_needed(version)

    def _look(self) -> None:
        super()._look()
        state = self._store.state
        after = self._record.rollbacks[state.step]
        for to_version in after[state.rollbacks - self._record.num_rollbacks(state.step) :]:
            self._store.go_back(to_version)
            self._compare()

    # read

    @property
    def _due(self) -> RecordedStep:
        return self._record.steps[self._store.state.step]

    def _read(self) -> tuple[Batch | None, float]:
        if self._store.state.step == len(self._record.steps):
            return None, 0.0  # its last rollbacks are done
        due = self._due
        batch, busy_s = self._open(max(1, len(due.group_ids))), 0.0
        known = due.group_ids | self._store.consumed.keys()
        while batch.num_seen < len(due.group_ids) and batch.next_offset < self._history.end_offset:
            record = self._ahead or self._next()
            if record is None:
                return None, busy_s
            named = group_id_of(record.value)
            self._ahead = record if named is not None and named not in known else None
            if self._ahead is not None:
                break
            busy_s += self._take(batch, record)
        return self._close(batch), busy_s

    def _close(self, batch: OpenBatch) -> Batch:
        """The source's batch, of what the history has of it."""
        due = self._due
        made = batch.close(run=self._history.run, version=due.started_from, max_staleness=self._config.max_staleness)
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

    def _started_from(self) -> int | None:
        return self._due.started_from

    def _is_due(self) -> bool:
        return self._due.version != self._store.state.version

    def _sift(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        return batch, {}

    # compare

    def _check(self, record: TrainingStep) -> bool:
        due = self._due
        _require(due, {due.step.skipped}, {record.skipped}, "to be skipped as")
        if due.version != record.version:
            raise ConfigurationError(
                f"step {record.step}: expected it to lead to version {due.version}, got {record.version}: this run's "
                "own steps did not repeat bit for bit after a kill; start it anew under another name"
            )
        return True

    def _say(self, record: TrainingStep, before: int) -> None:
        super()._say(record, before)
        self._compare()

    def _compare(self) -> None:
        """The present version with the source's of the same place."""
        state = self._store.state
        manifest = self._policy_log.lineage.versions.get(state.version)
        if self._is_unequal or manifest is None or not self._record.differs(manifest):
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

    def _progress(self) -> tuple[int, int]:
        return self._store.state.step, len(self._record.steps)


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
            told = ", ".join(" ".join(one) if isinstance(one, tuple) else one or "no" for one in sorted(only)[:_TOLD])
            words.append(f"{side} does: {told}" + (f" and {len(only) - _TOLD} more" if len(only) > _TOLD else ""))
    raise ConfigurationError(
        f"step {due.step.step}: expected {what} as the source did; {'; '.join(words)}. The history "
        "is not what it trained on: was it folded by other rules, or by another release?"
    )
