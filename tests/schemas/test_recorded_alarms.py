"""Alarms on recorded runs that train on thumbs: told soon after a collapse begins, never in a run that learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from tests.recorded import recorded_steps
from tracegrad.schemas.alarms import alarms_of
from tracegrad.schemas.records.training import TrainingStep

RECORDED = Path(__file__).with_name("recorded_steps")
CLEAN = sorted(path.name.partition(".")[0] for path in RECORDED.glob("clean-*.gz"))
COLLAPSES = sorted(path.name.partition(".")[0] for path in RECORDED.glob("collapse-*.gz"))
TRAILING = 5


def collapses_at(steps: Sequence[TrainingStep]) -> int:
    """The first step from which on the mean reward of the last five stays below half of the best such mean before."""
    ends = range(TRAILING, len(steps) + 1)
    means = [fmean(step.reward or 0.0 for step in steps[end - TRAILING : end]) for end in ends]
    best = max(range(len(means)), key=means.__getitem__)
    last_well = max(at for at in range(len(means)) if means[at] >= means[best] / 2)
    return steps[last_well + TRAILING].step


@pytest.mark.parametrize("name", COLLAPSES)
def test_a_recorded_collapse_is_told_within_five_steps(name: str) -> None:
    """And not before the ratings fall: what is learnt until then is learnt."""
    steps = recorded_steps(name)
    begins = collapses_at(steps)
    told = next(end for end in range(1, len(steps) + 1) if alarms_of(steps[:end]))
    assert begins - TRAILING <= told <= begins + 5


@pytest.mark.parametrize("name", CLEAN)
def test_a_recorded_run_that_learns_gives_no_alarm(name: str) -> None:
    """At no step."""
    steps = recorded_steps(name)
    assert not [(end, alarms_of(steps[:end])) for end in range(1, len(steps) + 1) if alarms_of(steps[:end])]
