"""What is watched while a batch trains: sums over its trained tokens, made of what the loss needs anyway; and what the
last step says of the run, as metrics: counters of this process, and gauges that a restart does not lose.

In: each micro-batch with its logprobs and loss terms; records of `training_steps`. Out: fields of StepResult; series of
the trainer's Metrics. No forward pass and no gradient of its own; no figure is ever NaN or infinite, and one that the
step does not have is shown by none, not by an old one. Tensor suffix: N trained tokens of a micro-batch.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from tracegrad.schemas.errors import DivergedError
from tracegrad.schemas.metrics import (
    ALARMS_HOLDING,
    CLIPPED,
    EFFECTIVE_SAMPLE,
    ENTROPY,
    GRADIENT_NORM,
    GROUPS_EXCLUDED,
    GROUPS_TRAINED,
    LAST_STEP,
    LOGPROB_ERROR,
    REWARD,
    REWARD_DEVIATION,
    RULE_REWARD,
    STALENESS,
    STALENESS_BOUND,
    STALENESS_GREATEST,
    STEP_SECONDS,
    STEPS,
    TOKENS_TRAINED,
    TRAINING_STEP,
    VERSION,
    Gauge,
    Metrics,
)
from tracegrad.schemas.records.training import LOGPROB_ERROR_BOUND, StepResult, TrainingStep

from .algorithm.form import TokenLoss
from .algorithm.level import clamped
from .batch.packing import MicroBatch

_log = logging.getLogger(__name__)
_COARSE_LOGPROB_ERROR_WARN = 1.0
"""The same where bfloat16 is published: its rounding alone gave 0.26."""


class StepFigures:
    """Of one batch, in each update before it moves the weights."""

    def __init__(self) -> None:
        self._num_tokens = self._num_checked = 0
        self._error_max = 0.0
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._names: list[str] = []
        self._unread: list[Tensor] = []
        """Of each micro-batch since the last look: a sum for each name, tokens checked, the greatest error."""

    def add_batch(
        self, batch: MicroBatch, logprobs_N: Tensor, term: TokenLoss, *, version: int, reference_N: Tensor | None
    ) -> None:
        """One more micro-batch.

        Args:
            logprobs_N: log pi.
            version: that of the weights, -1 of those that moved within the batch.
            reference_N: log pi of the reference, if any.
        """
        logprobs_N = logprobs_N.detach().double()
        log_ratios_N = clamped(logprobs_N - batch.sampler_logprobs_N)
        ratios_N = log_ratios_N.exp()
        seen = {
            "ratio_mean": ratios_N,
            "ratio_square": ratios_N.square(),
            "kl_sampler": ratios_N - 1.0 - log_ratios_N,
            "clip_fraction": term.clipped_N,
            "clip_fraction_positive": term.clipped_N & (batch.advantages_N > 0.0),
            "num_bounded_tokens": term.bounded_N,
            "num_rejected_tokens": term.rejected_N,
        }
        if reference_N is not None:
            behind_N = clamped(reference_N - logprobs_N)
            seen["kl_reference"] = behind_N.exp() - 1.0 - behind_N
        self._num_tokens += len(logprobs_N)
        # Probabilities are compared at the sampler's own version only: any gap is then an error, not learning.
        checked_N = batch.versions_N == version
        errors_N = (logprobs_N - batch.sampler_logprobs_N).abs().where(checked_N, 0.0)
        sums = [values_N.sum(dtype=torch.float64) for values_N in (*seen.values(), checked_N)]
        self._names = [*seen]
        self._unread.append(torch.stack([*sums, errors_N.max()]))

    def _read(self) -> None:
        """Waits for the device, once for all micro-batches since the last time."""
        for *sums, num_checked, error in torch.stack(self._unread).tolist() if self._unread else ():
            for name, value in zip(self._names, sums, strict=True):
                self._sums[name] += value
            self._num_checked += int(num_checked)
            self._error_max = max(self._error_max, error) if math.isfinite(error) else 1e9
        self._unread.clear()

    @property
    def is_finite(self) -> bool:
        """Whether the weights gave numbers at every token."""
        self._read()
        return math.isfinite(self._sums["ratio_mean"])

    def figures(self) -> dict[str, Any]:
        """The fields of StepResult that are watched."""
        self._read()
        sums = {name: value if math.isfinite(value) else 0.0 for name, value in self._sums.items()}
        num, squares = self._num_tokens, sums.pop("ratio_square")
        told = {name: int(value) if name.startswith("num_") else value / num for name, value in sums.items()}
        checked = {"logprob_error_max": self._error_max, "num_checked_tokens": self._num_checked}
        return told | checked | {"ess": sums["ratio_mean"] ** 2 / (num * squares) if squares else 0.0}


def skipped_as(reason: str) -> StepResult:
    """The result of a step that moved nothing."""
    return StepResult(is_updated=False, skipped=reason, loss=0.0, grad_norm=0.0, learning_rate=0.0)


def result_of(updates: Sequence[StepResult], figures: StepFigures) -> StepResult:
    """The result of a step: its last update's, with what all of them came to."""
    return replace(
        updates[-1],
        loss=math.fsum(update.loss for update in updates) / len(updates),
        grad_norm=max(update.grad_norm for update in updates),
        seconds={phase: math.fsum(update.seconds[phase] for update in updates) for phase in updates[-1].seconds},
        **figures.figures(),
    )


def diverged(record: TrainingStep, version: int) -> DivergedError:
    """Of a step from a version, or from later weights, whose loss or gradient was no number."""
    return DivergedError(
        f"expected a finite loss and gradient, got others at step {record.step} (version {version}, "
        f"offsets [{record.begin_offset}, {record.next_offset}) of `transitions`); nothing was trained on it. "
        "Lower [trainer] lr and start the run again, which goes on after this batch; if it comes again, start "
        "a new run from an older version's folder ([policy] model)"
    )


def warn_of_mismatch(record: TrainingStep, version: int, dtype: str) -> None:
    """Where a step from a version, published in a dtype, tells of other logprobs than the sampler's."""
    bound = LOGPROB_ERROR_BOUND if dtype == "float32" else _COARSE_LOGPROB_ERROR_WARN
    if record.logprob_error_max > bound:
        _log.warning(
            "version %d: sampler and trainer differ by %.3f nats over %d tokens; the engine serves other weights, "
            "or samples otherwise than it reports",
            version,
            record.logprob_error_max,
            record.num_checked_tokens,
        )


def show_start(metrics: Metrics, past: Sequence[TrainingStep], *, max_staleness: int) -> None:
    """A process begins, or goes on after these steps."""
    metrics.set(STALENESS_BOUND, max_staleness)
    if past:
        _show_standing(metrics, past[-1])


def show_step(metrics: Metrics, record: TrainingStep) -> None:
    """One more batch was concluded."""
    metrics.add(STEPS)
    metrics.add(GROUPS_TRAINED, num=len(record.group_ids))
    for reason in record.excluded_ids.values():
        metrics.add(GROUPS_EXCLUDED, reason)
    metrics.add(TOKENS_TRAINED, num=record.num_tokens)
    for phase, seconds in record.seconds.items():
        metrics.add(STEP_SECONDS, phase, num=seconds)
    _show_standing(metrics, record)


def _show_standing(metrics: Metrics, record: TrainingStep) -> None:
    """How the run stands after its last batch, which an earlier process may have concluded."""
    figures: dict[Gauge, float | None] = {
        TRAINING_STEP: record.step,
        LAST_STEP: record.ended_at_ms / 1000,
        VERSION: record.version,
        REWARD: record.reward,
        REWARD_DEVIATION: record.reward_std,
        STALENESS: record.staleness_mean,
        STALENESS_GREATEST: record.staleness_max,
        ENTROPY: record.entropy,
        GRADIENT_NORM: record.grad_norm,
        EFFECTIVE_SAMPLE: record.ess,
        CLIPPED: record.clip_fraction,
        LOGPROB_ERROR: record.logprob_error_max,
    }
    for gauge, value in figures.items():
        if value is None:
            metrics.clear(gauge)
        else:
            metrics.set(gauge, value)
    for gauge in (RULE_REWARD, ALARMS_HOLDING):
        metrics.clear(gauge)
    for rule, paid in record.reward_parts.items():
        metrics.set(RULE_REWARD, paid, rule)
    for alarm in record.alarms:
        metrics.set(ALARMS_HOLDING, 1, alarm)
