"""What the last batch says of the run, as metrics: counters of this process, and gauges that a restart does not lose.

In: records of `training_steps`. Out: series of the trainer's Metrics. Invariant: a figure that the batch does not have
is shown by none, not by an old one. Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from tracegrad.schemas.records.training import TrainingStep

__all__ = ["tell_start", "tell_step"]


def tell_start(metrics: Metrics, past: Sequence[TrainingStep], *, max_staleness: int) -> None:
    """A process begins, or goes on after these steps."""
    metrics.set(STALENESS_BOUND, max_staleness)
    if past:
        _tell_standing(metrics, past[-1])


def tell_step(metrics: Metrics, record: TrainingStep) -> None:
    """One more batch was concluded."""
    metrics.add(STEPS)
    metrics.add(GROUPS_TRAINED, num=len(record.group_ids))
    for reason in record.excluded_ids.values():
        metrics.add(GROUPS_EXCLUDED, reason)
    metrics.add(TOKENS_TRAINED, num=record.num_tokens)
    for phase, seconds in record.seconds.items():
        metrics.add(STEP_SECONDS, phase, num=seconds)
    _tell_standing(metrics, record)


def _tell_standing(metrics: Metrics, record: TrainingStep) -> None:
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
