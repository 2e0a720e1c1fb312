"""What a run came to, from its topics: curves by step, held-out scores and the best version, time per phase.

In: `RunState`, folded to the topics' present end. Out: `Results`, JSON-able. Invariant: computed from the surviving
steps and the held-out passes on `weights` only, whose best version is the one that the trainer keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from tracegrad.schemas.alarms.causes import Cause
from tracegrad.schemas.records.episodes import AIR_RULE
from tracegrad.schemas.records.training import RatingDrop, TrainingStep
from tracegrad.schemas.topics import Topic

from .held_out import HeldOut, held_out_of
from .run_state import RunState

RESULTS_TOPICS = (Topic.TRAINING_STEPS, Topic.WEIGHTS)
"""What must be folded for the numbers."""


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The version that scored best."""

    version: int
    folder: str | None
    """Where it lies; None: `weights` does not say."""
    score: HeldOut
    """The pass by which it is the best."""


class RolledBack(msgspec.Struct, frozen=True, kw_only=True):
    """A step after which the trainer went back to an older version."""

    step: int
    why: RatingDrop


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in results.json."""

    schema: str = "results/1"
    run: str
    steps: int
    version: int
    """The last step's."""
    num_unpublished: int
    """Updates since, which the checkpoint alone holds (`[publish] every`); 0 when a run is over."""
    before: HeldOut | None
    """The first pass."""
    after: HeldOut | None
    """The last one, where it is another."""
    held_out: list[HeldOut]
    """All passes, those two too."""
    best: Best | None
    """None: nothing was scored."""
    reward_last_ten: float | None
    """Mean of the last ten steps' rewards."""
    staleness_mean: float
    staleness_max: int
    logprob_error_max: float
    """Greatest difference between trainer and sampler at the same version, in nats."""
    num_checked_tokens: int
    """How many tokens that was taken over."""
    seconds: dict[str, float]
    """Sums of the trainer's phases, and `total` from the first step's begin to the last one's end."""
    curves: dict[str, list[float | None]]
    """Name -> value by step: reward, tool_success, reward_std, entropy, staleness, num_tokens, num_rows,
    num_row_tokens, air:<rule>."""
    rolled_back: list[RolledBack]
    """Because raters liked the newest versions less; those that people asked for are on `weights` alone."""
    causes: list[Cause] = []
    """Why attempts had nothing to train on, the commonest first."""


def results_of(state: RunState, *, run: str) -> Results:
    """The numbers of a run."""
    steps = state.steps
    curves: dict[str, list[float | None]] = {
        "reward": [step.reward for step in steps],
        "tool_success": [step.tool_success for step in steps],
        "reward_std": [step.reward_std for step in steps],
        "entropy": [step.entropy for step in steps],
        "staleness": [step.staleness_mean for step in steps],
        **{name: [getattr(step, name) for step in steps] for name in ("num_tokens", "num_rows", "num_row_tokens")},
    }
    for rule in sorted({rule for step in steps for rule in step.reward_parts if rule.startswith(AIR_RULE)}):
        curves[rule] = [step.reward_parts.get(rule) for step in steps]
    known = sorted(state.held_out.by_number.items())
    passes = [held_out for _, one in known if (held_out := held_out_of(one)) is not None]
    last = [step.reward for step in steps[-10:] if step.reward is not None]
    return Results(
        run=run,
        steps=len(steps),
        version=steps[-1].version if steps else 0,
        num_unpublished=steps[-1].num_unpublished if steps else 0,
        before=passes[0] if passes else None,
        after=passes[-1] if passes[1:] else None,
        held_out=passes,
        best=_best(state),
        reward_last_ten=fmean(last) if last else None,
        staleness_mean=fmean(step.staleness_mean for step in steps) if steps else 0.0,
        staleness_max=max((step.staleness_max for step in steps), default=0),
        logprob_error_max=max((step.logprob_error_max for step in steps), default=0.0),
        num_checked_tokens=sum(step.num_checked_tokens for step in steps),
        seconds=_seconds(steps),
        curves=curves,
        rolled_back=[
            RolledBack(step=step.step, why=step.rated_worse) for step in steps if step.rated_worse is not None
        ],
        causes=state.causes.found(),
    )


def _best(state: RunState) -> Best | None:
    best = state.held_out.best
    score = held_out_of(best) if best else None
    if score is None or score.version is None:
        return None
    return Best(version=score.version, folder=state.folder(score.version), score=score)


def _seconds(steps: Sequence[TrainingStep]) -> dict[str, float]:
    phases = {phase for step in steps for phase in step.seconds}
    sums = {phase: round(math.fsum(step.seconds.get(phase, 0.0) for step in steps), 3) for phase in sorted(phases)}
    total = (steps[-1].ended_at_ms - steps[0].started_at_ms) / 1000 if steps else 0.0
    return {**sums, "total": round(max(0.0, total), 3)}
