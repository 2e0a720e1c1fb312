"""The chart: what it shows, and that any numbers give a valid file."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state
from tracegrad.consumers.views.chart import draw, running_mean
from tracegrad.consumers.views.results import RESULTS_TOPICS, Results, results_of

VALUES = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=20)


def results() -> Results:
    """Of a small run."""
    return results_of(fold_all(new_state(), small_run(), RESULTS_TOPICS), run="<mine> & co")


@pytest.mark.slow
def test_the_chart_shows_both_held_out_passes_with_their_intervals() -> None:
    """And an interrupted run has a chart too; equal numbers give equal bytes."""
    drawn = draw(results())
    assert "held-out before: 0.000, 95% 0.000 to 0.000" in drawn and "held-out after: 1.000, 95% 1.000" in drawn
    assert "tool_success" in drawn and "versions" in drawn
    ElementTree.fromstring(drawn)
    assert draw(results()) == drawn
    ElementTree.fromstring(draw(results_of(new_state(), run="test")))


@pytest.mark.slow
def test_steps_are_ticked_at_whole_numbers() -> None:
    """Not at 61 and .273."""
    curves: dict[str, list[float | None]] = {"reward": [step / 80 for step in range(80)], "staleness": [1.09] * 80}
    texts = ["".join(node.itertext()) for node in ElementTree.fromstring(
        draw(msgspec.structs.replace(results(), steps=80, curves=curves))
    ).iter("{http://www.w3.org/2000/svg}text")]  # fmt: skip
    assert {"0", "10", "80", "0.2", "1.0"} <= set(texts)
    assert not {"20.25", "60.75", "0.273"} & set(texts)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(VALUES, VALUES)
def test_odd_numbers_give_a_valid_file(reward: list[float | None], rule: list[float | None]) -> None:
    """Gaps, one point, equal values, none at all."""
    curves = {"reward": reward, "tool_success": [None] * 3, "staleness": [math.nan, 1.0], "air:<x>": rule}
    drawn = ElementTree.fromstring(draw(msgspec.structs.replace(results(), steps=len(reward), curves=curves)))
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"


@given(VALUES, st.integers(1, 5))
def test_the_running_mean_is_over_what_is_there(values: list[float | None], window: int) -> None:
    """By the definition, value by value."""
    for place, mean in enumerate(running_mean(values, window)):
        there = [value for value in values[max(0, place + 1 - window) : place + 1] if value is not None]
        assert math.isnan(mean) if not there else mean == pytest.approx(math.fsum(there) / len(there), abs=1e-6)
