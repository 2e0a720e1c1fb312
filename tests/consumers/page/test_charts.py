"""Curves as numbers: whatever a run holds, all series share one axis, and a long run stays small."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.page.boards import step
from tracegrad.consumers.page.charts import alarm_spells, charts_of, running_mean
from tracegrad.consumers.views.held_out import HeldOut

numbers = st.none() | st.floats(allow_nan=True, allow_infinity=True)


def scored(number: int, at: int, mean: float | None) -> HeldOut:
    """One pass."""
    return HeldOut(mean=mean, low=mean, high=mean, num_scored=1, version=at, number=number, step=at, num_tasks=1)


def test_charts_of_a_small_run() -> None:
    """A pass before training has a place on the axis; tokens are over the step's seconds."""
    found = charts_of([step(1), step(2)], [scored(0, 0, 0.25)])
    assert found.steps == [0, 1, 2]
    charts = {chart.id: chart for chart in found.charts}
    assert {one.name: list(one.values) for one in charts["reward"].series} == {
        "each step": [None, 0.5, 0.5],
        "mean of ten": [None, 0.5, 0.5],
        "held-out": [0.25, None, None],
    }
    assert list(charts["speed"].series[0].values) == [None, 15, 15]
    assert charts["time"].is_stacked and "tools" not in charts


def times_of(*waits: float) -> tuple[str, float | None]:
    """Unit and top of the picture of where the time goes."""
    steps = [msgspec.structs.replace(step(at + 1), seconds={"wait": wait}) for at, wait in enumerate(waits)]
    (found,) = (chart for chart in charts_of(steps, []).charts if chart.id == "time")
    return found.unit, found.top


def test_a_long_wait_flattens_no_other_step() -> None:
    """The picture ends above the usual steps, and says what is beyond it; steps of about one length are shown whole."""
    assert times_of(62.0, *[2.0] * 11) == ("seconds; 1 beyond the picture, up to 62", 3.0)
    assert times_of(62.0, *[2.0] * 10, 40.0, *[2.0] * 10)[0] == "seconds; 2 beyond the picture, up to 62"
    assert times_of(5.0, *[2.0] * 11) == ("seconds", None)
    assert times_of(*[0.0] * 12) == ("seconds", None)
    assert times_of(62.0, 2.0) == ("seconds", None)


@given(st.lists(numbers, max_size=3_000), st.lists(numbers, max_size=3))
def test_any_run_gives_numbers_that_fit_together(rewards: list[float | None], means: list[float | None]) -> None:
    """All that goes to the browser is finite or a gap, as long as the axis, and bounded."""
    steps = [step(number + 1, reward=reward) for number, reward in enumerate(rewards)]
    found = charts_of(steps, [scored(number, 10 * number, mean) for number, mean in enumerate(means)])
    assert len(found.steps) <= 1_000
    for chart in found.charts:
        for one in chart.series:
            for values in filter(None, (one.values, one.low, one.high)):
                assert len(values) == len(found.steps)
                assert all(value is None or math.isfinite(value) for value in values)
    msgspec.json.encode(found)


def test_an_alarm_is_told_by_the_steps_at_which_it_held() -> None:
    """What goes and comes again is two spells."""
    steps = [step(1), step(2, alarms=("a",)), step(3, alarms=("a", "b")), step(4), step(5, alarms=("a",))]
    assert alarm_spells(steps) == {"a": [(2, 3), (5, 5)], "b": [(3, 3)]}


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=20), st.integers(1, 5))
def test_the_running_mean_is_over_what_is_there(values: list[float | None], window: int) -> None:
    """By the definition, value by value."""
    for place, mean in enumerate(running_mean(values, window)):
        there = [value for value in values[max(0, place + 1 - window) : place + 1] if value is not None]
        assert math.isnan(mean) if not there else mean == pytest.approx(math.fsum(there) / len(there), abs=1e-6)
