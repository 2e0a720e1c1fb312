"""Metrics: declared once, counted as told, bounded."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.metrics import by_owner
from tracegrad.schemas import metrics
from tracegrad.schemas.metrics import DEAD_LETTERS, READY, Counter, Gauge, Metrics, declared
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessReport

ROOT = Path(__file__).parents[2]


def test_names_are_unique_and_every_metric_says_what_it_is() -> None:
    """In one sentence."""
    assert [metric.name for metric in declared() if not metric.help.endswith(".")] == []
    for names in ([metric.name for metric in declared()], [metric.exposed for metric in declared()]):
        assert len(set(names)) == len(names)


def test_names_follow_the_rules_of_prometheus() -> None:
    """Lower case, a base unit spelt out at the end, `_total` for counters alone, no word that a client library or a$
    adds by itself (https://prometheus.io/docs/practices/naming)."""
    offences = []
    for metric in declared():
        words = metric.exposed.split("_")
        is_counter = isinstance(metric, Counter)
        is_wrong = (
            re.fullmatch(r"tracegrad(_[a-z]+)+", metric.exposed) is None
            or (words[-1] == "total") is not is_counter
            or words[-1] in {"count", "sum", "bucket", "info", "created"}
            or {"counter", "gauge", "ms", "s", "milliseconds", "minutes", "mb", "percent"} & {*words}
            or {"le", "quantile", "job", "instance", "run", "process", "engine"} & {*metric.labels}
            or any(re.fullmatch(r"[a-z]+(_[a-z]+)*", label) is None for label in metric.labels)
        )
        offences += [metric.exposed] if is_wrong else []
    assert offences == []


def test_every_metric_has_a_place() -> None:
    """Who counts it stands in docs/metrics.md."""
    assert [metric for metrics in by_owner().values() for metric in metrics] == [*declared()]


def test_every_metric_is_counted_somewhere() -> None:
    """One that nobody counts would be shown as nothing for ever."""
    used = {
        node.id
        for room in ("schemas", "producers", "streams", "trainer", "consumers", "compose")
        for path in (ROOT / room).rglob("*.py")
        if path.parent != ROOT / "schemas" / "metrics"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name)
    }
    constants = {name for name, value in vars(metrics).items() if isinstance(value, metrics.Metric)}
    assert constants - used == set()


@given(st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(1, 9))))
def test_the_sum_over_labels_is_what_was_added(added: list[tuple[str, int]]) -> None:
    """In whatever order."""
    counts = Metrics()
    for reason, num in added:
        counts.add(DEAD_LETTERS, reason, num=num)
    assert counts.value(DEAD_LETTERS) == sum(num for _, num in added)
    assert counts.value(DEAD_LETTERS, "a") == sum(num for reason, num in added if reason == "a")


def test_a_snapshot_is_plain_and_by_series() -> None:
    """As it lies on process_status."""
    counts = Metrics()
    counts.add(metrics.SPLICES, "new_segment", "turn_changed")
    counts.add(metrics.CALLS, num=2)
    counts.set(metrics.LAG, 7)
    counts.set(metrics.ASSIGNED, 1, "t", "0")
    counts.clear(metrics.ASSIGNED)
    expected = {"calls": 2, "lag": 7, "splices{kind=new_segment,reason=turn_changed}": 1}
    assert json.loads(json.dumps(counts.snapshot())) == expected


def test_a_gauge_that_is_true_or_false_can_be_read_back_from_a_report() -> None:
    """A flag is a number on the topic: a reader that finds `true` refuses the whole report."""
    metrics = Metrics()
    metrics.set(READY, True)
    report = ProcessReport(process="llm-0", pid=1, since_ms=1, at_ms=1, counters=metrics.snapshot())
    assert PROCESS_STATUS.decode(PROCESS_STATUS.encode(report)) == report


def test_labels_must_be_those_of_the_declaration() -> None:
    """A forgotten label is our own mistake."""
    with pytest.raises(ValueError, match="dead_letters"):
        Metrics().add(DEAD_LETTERS)


def test_the_number_of_series_is_bounded() -> None:
    """New label values beyond the bound are counted together."""
    counts, of_many = Metrics(max_series=3), Counter("of_many", "Many.", ("id",))
    for number in range(10):
        counts.add(of_many, str(number))
    assert len(counts.snapshot()) == 4
    assert counts.value(of_many, "other") == 7 and counts.value(of_many) == 10


def test_a_label_has_a_hundred_values_and_no_more() -> None:
    """A name that agents choose cannot fill a registry; the other labels of the metric stay what they are."""
    counts, of_many = Metrics(), Counter("of_many", "Many.", ("id", "kind"))
    for number in range(100_000):
        counts.add(of_many, f"task-{number}", ("a", "b")[number % 2])
    assert len(counts.snapshot()) == 102
    assert counts.value(of_many, "other", "a") + counts.value(of_many, "other", "b") == 99_900
    assert counts.value(of_many) == 100_000


def test_a_long_value_is_cut_and_still_one_series() -> None:
    """However often it comes."""
    counts, of_many = Metrics(), Counter("of_many", "Many.", ("id",))
    for _ in range(3):
        counts.add(of_many, "x" * 1_000_000)
    assert counts.snapshot() == {f"of_many{{id={'x' * 100}}}": 3}


def test_a_gauge_that_is_cleared_has_room_for_other_values() -> None:
    """What it was before is forgotten with its labels."""
    gauge, metrics = Gauge("of_many", "Many.", ("id",)), Metrics()
    for number in range(200):
        metrics.set(gauge, 1, str(number))
    metrics.clear(gauge)
    metrics.set(gauge, 1, "new")
    assert metrics.snapshot() == {"of_many{id=new}": 1}
