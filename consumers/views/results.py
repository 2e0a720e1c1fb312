"""What a run came to, from its topics: curves by step, held-out score before and after, time per phase.

In: `RunState`, folded to the topics' present end. Out: `Results`, JSON-able. Invariant: computed from the surviving
steps and the final episodes only; an unscored episode is counted as unscored, never as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.topics import Topic

from .run_state import RunState

__all__ = ["RESULTS_TOPICS", "HeldOut", "Results", "results_of", "wilson"]

RESULTS_TOPICS = (Topic.TRAINING_STEPS, Topic.EPISODES)
"""What must be folded for the numbers."""
_Z = 1.959964
"""95 % two-sided."""


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over the held-out tasks."""

    num_tasks: int
    num_scored: int
    mean: float | None
    """Mean reward of the scored ones; None when none is."""
    low: float | None = None
    high: float | None = None
    """95 % confidence interval: Wilson's when every reward is 0 or 1, else normal."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in results.json."""

    schema: str = "results/1"
    run: str
    steps: int
    version: int
    """The last step's."""
    before: HeldOut | None
    after: HeldOut | None
    reward_last_ten: float | None
    """Mean of the last ten steps' rewards."""
    staleness_mean: float
    staleness_max: int
    logprob_error_max: float
    """Greatest difference between trainer and sampler at the same version, in nats."""
    seconds: dict[str, float]
    """Sums of the trainer's phases, and `total` from the first step's begin to the last one's end."""
    curves: dict[str, list[float | None]]
    """Name -> value by step: reward, tool_success, staleness, air:<rule>."""


def results_of(state: RunState, *, run: str) -> Results:
    """The numbers of a run."""
    steps = state.steps
    curves: dict[str, list[float | None]] = {
        "reward": [step.reward for step in steps],
        "tool_success": [step.tool_success for step in steps],
        "staleness": [step.staleness_mean for step in steps],
    }
    for rule in sorted({rule for step in steps for rule in step.reward_parts if rule.startswith("air:")}):
        curves[rule] = [step.reward_parts.get(rule) for step in steps]
    last = [step.reward for step in steps[-10:] if step.reward is not None]
    return Results(
        run=run,
        steps=len(steps),
        version=steps[-1].version if steps else 0,
        before=_held_out(state.held_out(is_after=False)),
        after=_held_out(state.held_out(is_after=True)),
        reward_last_ten=fmean(last) if last else None,
        staleness_mean=fmean(step.staleness_mean for step in steps) if steps else 0.0,
        staleness_max=max((step.staleness_max for step in steps), default=0),
        logprob_error_max=max((step.logprob_error_max for step in steps), default=0.0),
        seconds=_seconds(steps),
        curves=curves,
    )


def _held_out(of_pass: Sequence[float | None]) -> HeldOut | None:
    """The score of one pass; None when the pass did not run."""
    if not of_pass:
        return None
    rewards = [reward for reward in of_pass if reward is not None]
    if not rewards:
        return HeldOut(num_tasks=len(of_pass), num_scored=0, mean=None)
    mean = fmean(rewards)
    if all(reward in (0.0, 1.0) for reward in rewards):
        low, high = wilson(sum(reward == 1.0 for reward in rewards), len(rewards))
    else:
        variance = math.fsum((reward - mean) ** 2 for reward in rewards) / max(1, len(rewards) - 1)
        spread = _Z * math.sqrt(variance / len(rewards))
        low, high = mean - spread, mean + spread
    return HeldOut(num_tasks=len(of_pass), num_scored=len(rewards), mean=mean, low=low, high=high)


def wilson(num_successes: int, num_trials: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion; (0, 1) without trials."""
    if num_trials == 0:
        return (0.0, 1.0)
    share = num_successes / num_trials
    weight = 1 + _Z**2 / num_trials
    centre = (share + _Z**2 / (2 * num_trials)) / weight
    spread = _Z / weight * math.sqrt(share * (1 - share) / num_trials + _Z**2 / (4 * num_trials**2))
    return (max(0.0, centre - spread), min(1.0, centre + spread))


def _seconds(steps: Sequence[TrainingStep]) -> dict[str, float]:
    phases = {phase for step in steps for phase in step.seconds}
    sums = {phase: round(math.fsum(step.seconds.get(phase, 0.0) for step in steps), 3) for phase in sorted(phases)}
    total = (steps[-1].ended_at_ms - steps[0].started_at_ms) / 1000 if steps else 0.0
    return {**sums, "total": round(max(0.0, total), 3)}
