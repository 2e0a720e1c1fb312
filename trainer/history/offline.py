"""The trainer of a run whose `transitions` lie there: it waits for nothing, and ends where they end.

    read      up to G groups, at the end those that are left: the last batch is trained however few it has
    sift      `offline`: a pass over the rows; groups of too small an effective sample size are excluded
              `filter`: episodes below the bound, and groups without another, are excluded
    the rest  as any trainer (loop.py): checkpoint, version, record; a kill is gone on from

In: the policy's partition up to `History.end_offset`. Out: what a trainer writes, under this run's own versions, and
how far it is. Invariant: what a token's version was is compared with nothing, for another run numbered it: there is no
staleness, and no check of the sampler's logprobs against a version's. Tokens of a third run are excluded.
On failure: as loop.py; ConfigurationError where the recipe cannot train so; LogGapError where the history is shorter
than was told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import LogGapError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import REPLAY_STEP, REPLAY_STEPS
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.training import TrainingStep

from ..algorithm.recipe import Recipe
from ..batch.advantages import Doubles
from ..batch.batches import Batch, OpenBatch
from ..batch.forms import in_form
from ..batch.groups import above
from ..batch.rows import training_rows
from ..config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from ..loop import Trainer
from .compare import require_recipe
from .config import History
from .ess import described, ess

__all__ = ["HistoryTrainer"]

_UNKNOWN: Mapping[str, Any] = {"ratio_mean": 1.0, "ess": 1.0, "kl_sampler": 0.0, "entropy": None, "entropy_by_turn": {}}
"""Figures that are made of the sampler's logprobs, as they are told without any."""


class HistoryTrainer(Trainer):
    """Of modes `offline` and `filter`."""

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: AlgorithmConfig,
        alarms: AlarmsConfig,
        handles: TrainerHandles,
        **named: Any,
    ) -> None:
        assert handles.history is not None
        self._history: History = handles.history
        super().__init__(config, algorithm, alarms, handles, **named)
        self._tell_progress()

    def _recipe(self, algorithm: AlgorithmConfig) -> Recipe:
        recipe = super()._recipe(algorithm)
        require_recipe(self._history, recipe)
        return recipe

    # read

    @property
    def _is_done(self) -> bool:
        return super()._is_done or self._store.state.next_offset >= self._history.end_offset

    def _read(self) -> tuple[Batch | None, float]:
        batch, busy_s = self._open(self._config.groups_per_step), 0.0
        while not batch.is_complete and batch.next_offset < self._history.end_offset:
            record = self._next()
            if record is None:
                return None, busy_s
            busy_s += self._take(batch, record)
        return self._close(batch), busy_s

    def _next(self) -> Record | None:
        """The next record of the history, which there is; None when told to stop."""
        while not self._stop.is_set():
            beat()
            if (record := self._source.next()) is not None:
                return record
            self._store.look()
            if self._source.lag == 0:
                raise LogGapError(
                    f"expected a history up to offset {self._history.end_offset} of `transitions`, got fewer records: "
                    "the replay that wrote it did not end; start it again"
                )
        return None

    def _take(self, batch: OpenBatch, record: Record) -> float:
        """Its seconds."""
        began = time.perf_counter()
        with self._in_work.reading(record):
            batch.add(record)
        return time.perf_counter() - began

    def _close(self, batch: OpenBatch) -> Batch:
        return batch.close(run=self._history.run, version=None, max_staleness=0)

    def _started_from(self) -> int | None:
        return None

    # sift

    def _sift(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        if self._history.mode == "filter":
            kept = {group.summary.group_id: above(group, self._history.config.bound) for group in batch.groups}
            batch = batch.without([id_ for id_, group in kept.items() if not group.rows], Reason.BELOW_BOUND)
            batch = replace(batch, groups=tuple(kept[id_] for id_ in batch.group_ids))
            return batch, {} if self._history.has_logprobs else dict(_UNKNOWN)
        by_group = self._log_weights(batch)
        pooled = [ess(np.concatenate([np.zeros(0), *rows])) for rows in by_group]
        low = [
            id_ for id_, value in zip(batch.group_ids, pooled, strict=True) if value < self._history.config.min_ess
        ]  # NaN is not: the step is to say so
        told = described([ess(row_N) for row_N in chain.from_iterable(by_group)])
        if told:
            told["low"] = len(low) / len(pooled)
        return batch.without(low, "low_ess"), {"row_ess": told}

    def _log_weights(self, batch: Batch) -> list[list[Doubles]]:
        """Of each group, of each of its rows that trains: [N] log pi - log mu of its trained tokens."""
        recipe = self._learner.recipe
        formed = in_form(batch.groups, recipe.rows, max_row_tokens=self._config.max_row_tokens)
        by_group = [training_rows([group], recipe)[0] for group in formed]
        rows = [row for of_group in by_group for row in of_group]
        told = zip(rows, self._learner.logprobs_of(rows), strict=True)
        found = iter([(of_T - row.sampler_logprobs_T)[row.loss_mask_T] for row, of_T in told])
        return [[next(found) for _ in of_group] for of_group in by_group]

    # tell

    def _say(self, record: TrainingStep, before: int) -> None:
        super()._say(record, before)
        self._tell_progress()

    def _tell_progress(self) -> None:
        done, all_ = self._progress()
        self._metrics.set(REPLAY_STEP, done)
        self._metrics.set(REPLAY_STEPS, all_)

    def _progress(self) -> tuple[int, int]:
        """Steps done and steps of the whole history; the latter by the groups that are left, as if each counted."""
        state = self._store.state
        left = math.ceil((self._history.end_offset - state.next_offset) / self._config.groups_per_step)
        return state.step, max(state.step, min(self._config.steps, state.step + left))
