"""A source whose `transitions` lie there: it waits for nothing, and ends where they end. Modes `offline` and `filter`.

    read      up to G groups, at the end those that are left: the last batch is trained however few it has
    sift      `offline`: a pass over the rows; groups of too small an effective sample size are excluded
              `filter`: episodes below the bound, and groups without another, are excluded

    ess(w) = (sum of w_t)^2 / (n * sum of w_t^2)        w_t = pi(t) / mu(t), log w within +-20; n trained tokens

The effective sample size (Kish 1965; Kong 1992) tells how much of what another policy sampled still counts: between
1 / n, one token carries all, and 1, all weigh alike. It knows no common factor: where pi finds all tokens half as
likely as mu did, it is 1; `kl_sampler` and `clip_fraction` tell of that. Of a row it is over the row's trained tokens,
of a group over those of all its rows, so that a row of few tokens, whose least value is 1 / n, does not decide.

In: the policy's partition up to `History.end_offset`. Invariant: what a token's version was is compared with nothing,
for another run numbered it: there is no staleness, and no check of the sampler's logprobs against a version's. Tokens
of a third run are excluded.
On failure: LogGapError where the history is shorter than was told. Tensor suffix: N trained tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from tracegrad.schemas.metrics import REPLAY_STEP, REPLAY_STEPS, Metrics
from tracegrad.schemas.reasons import Reason

from ..algorithm.level import MAX_LOG_RATIO
from ..algorithm.recipe import Recipe
from ..batch.advantages import Doubles
from ..batch.batches import Batch
from ..batch.groups import filtered, in_form
from ..batch.rows import training_rows
from ..config import TrainerConfig
from ..learner import Learner
from ..source import BatchReader, Source
from ..store.checkpoint import CheckpointState, Progress
from .config import History


@dataclass
class HistorySource(Source):
    """Another run's history."""

    history: History
    config: TrainerConfig
    recipe: Recipe
    learner: Learner
    reader: BatchReader
    metrics: Metrics

    def is_last(self, step: int, next_offset: int) -> bool:
        return step >= self.config.steps or next_offset >= self.history.end_offset

    def read(self, progress: Progress, look: Callable[[], None]) -> Batch | None:
        batch = self.reader.open(progress, self.config.groups_per_step)
        while not batch.is_complete and batch.next_offset < self.history.end_offset:
            record = self.reader.next_before(self.history.end_offset, look)
            if record is None:
                return None
            self.reader.add_record(batch, record)
        return batch.close(run=self.history.run, version=None, max_staleness=0)

    def sift(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        if self.history.mode == "filter":
            kept = {group.summary.group_id: filtered(group, self.history.config) for group in batch.groups}
            batch = batch.without([id_ for id_, group in kept.items() if not group.rows], Reason.BELOW_BOUND)
            batch = replace(batch, groups=tuple(kept[id_] for id_ in batch.group_ids))
            return batch, {}
        by_group = self._log_weights(batch)
        pooled = [ess(np.concatenate([np.zeros(0), *rows])) for rows in by_group]
        low = [
            id_ for id_, value in zip(batch.group_ids, pooled, strict=True) if value < self.history.config.min_ess
        ]  # NaN is not: the step is to say so
        told = described([ess(row_N) for row_N in chain.from_iterable(by_group)])
        if told:
            told["low"] = len(low) / len(pooled)
        return batch.without(low, Reason.LOW_ESS), {"row_ess": told}

    def observe(self, state: CheckpointState) -> None:
        """Tells steps done and steps of the whole history; the latter by the groups that are left, as if each
        counted."""
        left = math.ceil((self.history.end_offset - state.next_offset) / self.config.groups_per_step)
        self.metrics.set(REPLAY_STEP, state.step)
        self.metrics.set(REPLAY_STEPS, max(state.step, min(self.config.steps, state.step + left)))

    def _log_weights(self, batch: Batch) -> list[list[Doubles]]:
        """Of each group, of each of its rows that trains: [N] log pi - log mu of its trained tokens."""
        formed = in_form(batch.groups, self.recipe.rows, max_row_tokens=self.config.max_row_tokens)
        by_group = [training_rows([group], self.recipe)[0] for group in formed]
        rows = [row for of_group in by_group for row in of_group]
        told = zip(rows, self.learner.logprobs_of(rows), strict=True)
        found = iter([(of_T - row.sampler_logprobs_T)[row.loss_mask_T] for row, of_T in told])
        return [[next(found) for _ in of_group] for of_group in by_group]


def ess(log_weights_N: Doubles) -> float:
    """Of N tokens, 1 of none; NaN where the policy gave a token no number: the step is to say so."""
    if not log_weights_N.size:
        return 1.0
    log_weights_N = log_weights_N.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # as the loss bounds a ratio
    weights_N = np.exp(log_weights_N - log_weights_N.max())  # a common factor changes nothing
    return float(weights_N.sum() ** 2 / (weights_N.size * np.square(weights_N).sum()))


def described(rows: Sequence[float]) -> dict[str, float]:
    """Of the rows of a batch: mean, least and quantiles; empty without a number."""
    finite = np.array([value for value in rows if np.isfinite(value)])
    if not finite.size:
        return {}
    p10, p50, p90 = np.quantile(finite, (0.1, 0.5, 0.9))
    told = {"mean": finite.mean(), "min": finite.min(), "p10": p10, "p50": p50, "p90": p90}
    return {name: float(value) for name, value in told.items()}
