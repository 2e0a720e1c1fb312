"""The report's chart, and how a run's steps are printed."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state, read
from tracegrad.compose.run.report import chart_of
from tracegrad.compose.run.show import JsonShow, PlainShow
from tracegrad.consumers.views.chart import Panel, Series, draw
from tracegrad.consumers.views.results import RESULTS_TOPICS, results_of
from tracegrad.consumers.views.terminal import StepLines
from tracegrad.schemas.topics import Topic


def test_the_chart_shows_both_held_out_passes() -> None:
    """Of a small run; and an interrupted one has a chart too."""
    drawn = chart_of(results_of(fold_all(new_state(), small_run(), RESULTS_TOPICS), run="test"))
    assert ElementTree.fromstring(drawn).tag.endswith("svg") and "held-out after" in drawn
    ElementTree.fromstring(chart_of(results_of(new_state(), run="test")))


def test_a_chart_of_odd_numbers_is_valid() -> None:
    """Gaps, one point, equal values, names with markup."""
    series = Series(name="<a>&", points=((1.0, None), (2.0, float("nan")), (3.0, 1.0)))
    drawn = draw("t", [Panel(title="p", series=(series,)), Panel(title="empty", series=())])
    assert "nan" not in drawn
    ElementTree.fromstring(drawn)


def test_plain_and_json_lines() -> None:
    """One line per step each; a header once."""
    events = read(StepLines(), new_state(), small_run(), (Topic.TRAINING_STEPS,))
    plain, machine = io.StringIO(), io.StringIO()
    for event in events:
        PlainShow(plain).event(event)
        JsonShow(machine).event(event)
    assert "reward" in plain.getvalue() and "0.250" in plain.getvalue()
    lines = [json.loads(line) for line in machine.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "step"] and lines[1]["version"] == 2
