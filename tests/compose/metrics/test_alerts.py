"""compose/alerts.yml on series of recorded runs and of faults, by promtool: each rule fires on what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]

from tests.compose.metrics.prometheus import Series, failures, needs_prometheus, promtool, sample, unknown_names
from tests.recorded import recorded_steps
from tracegrad.schemas import metrics as m
from tracegrad.schemas.alarms import alarms_of
from tracegrad.schemas.metrics import Metrics
from tracegrad.trainer.step_figures import show_start, show_step

pytestmark = pytest.mark.slow

COMPOSE = Path(__file__).parents[3] / "compose"
RULES = COMPOSE / "alerts.yml"
UP = 'up{job="tracegrad",run="mine",process="trainer",instance="mine/trainer"}'
HOUR = range(60)


def rules() -> list[dict[str, Any]]:
    """As they stand in the file."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_rules_name_declared_metrics_alone() -> None:
    """Another name would never fire."""
    assert unknown_names(rule["expr"] for rule in rules()) == set()
    assert unknown_names(["tracegrad_gone_total > 0"]) == {"tracegrad_gone_total"}


@needs_prometheus
def test_promtool_finds_no_fault_with_the_files() -> None:
    """The settings name the rules, and both can be read."""
    done = promtool("check", "config", COMPOSE / "prometheus.yml")
    assert done.returncode == 0 and f"{len(rules())} rules found" in done.stdout, done.stdout + done.stderr
    assert promtool("check", "rules", RULES).returncode == 0


def recorded(name: str) -> Series:
    """What a trainer showed, had it concluded one batch a minute."""
    metrics, steps = Metrics(), recorded_steps(name)
    series = {UP: ["1"] * len(steps)}
    show_start(metrics, [], max_staleness=8)
    for minute, step in enumerate(steps):
        alarms = alarms_of(steps[: minute + 1])
        show_step(metrics, msgspec.structs.replace(step, ended_at_ms=60_000 * minute, alarms=alarms))
        sample(series, metrics, minute, process="trainer")
    return series


@needs_prometheus
@pytest.mark.parametrize("name", [f"clean-{number}" for number in range(7)])
def test_a_run_that_learns_raises_no_alert(name: str, tmp_path: Path) -> None:
    """Of none of the rules, in any minute."""
    series = recorded(name)
    minutes = range(len(recorded_steps(name)))
    assert {one["alert"]: failures(series, one["alert"], minutes, tmp_path, RULES) for one in rules()} == {
        one["alert"]: [] for one in rules()
    }


@needs_prometheus
def test_a_run_that_earns_air_alone_raises_the_alert(tmp_path: Path) -> None:
    """Its thumbs went from .1 to none while AIR went from .1 to 3.7 (collapse-0)."""
    fired = failures(recorded("collapse-0"), "TracegradAirWithoutReward", HOUR, tmp_path, RULES)
    assert fired == [*range(46, 60)]


@needs_prometheus
@pytest.mark.parametrize("name", ["collapse-0", "collapse-1"])
def test_an_alarm_of_the_trainer_is_an_alert_as_long_as_it_holds(name: str, tmp_path: Path) -> None:
    """In the minute of its step, and no longer."""
    steps = recorded_steps(name)
    held = [minute for minute in range(len(steps)) if alarms_of(steps[: minute + 1])]
    assert held and failures(recorded(name), "TracegradAlarm", range(len(steps)), tmp_path, RULES) == held


def faulty(alert: str) -> Series:
    """Two hours, of which the second is at fault."""
    series = {UP: ["1"] * 60 + ["0" if alert == "TracegradNoAnswer" else "1"] * 60}
    metrics = Metrics()
    for minute in range(120):
        is_wrong = minute >= 60
        metrics.set(m.LAST_STEP, 60.0 * (60 if is_wrong and alert == "TracegradNoProgress" else minute))
        metrics.set(m.LAG, 100.0 * (minute if is_wrong and alert == "TracegradLag" else 1))
        metrics.set(m.STALENESS_BOUND, 8)
        metrics.set(m.STALENESS, 2)
        if is_wrong and minute < 70:
            if alert == "TracegradRestarts":
                metrics.add(m.PROCESS_RESTARTS, "llm")
            if alert == "TracegradLabelWrong":
                metrics.add(m.LABELS_REFUSED, num=5)
        if minute == 60 and alert == "TracegradDeadLetters":
            metrics.add(m.DEAD_LETTERS, "malformed")
        if minute == 60 and alert == "TracegradStale":
            metrics.add(m.GROUPS_EXCLUDED, "stale")
        sample(series, metrics, minute, process="trainer")
    return series


@needs_prometheus
@pytest.mark.parametrize(
    ("alert", "first", "last"),
    [
        ("TracegradNoAnswer", 62, 119),
        ("TracegradNoProgress", 106, 119),
        ("TracegradRestarts", 62, 81),
        ("TracegradLag", 70, 119),
        ("TracegradDeadLetters", 60, 69),
        ("TracegradStale", 60, 74),
        ("TracegradLabelWrong", 66, 70),
    ],
)
def test_each_rule_fires_on_its_fault_and_on_no_other(alert: str, first: int, last: int, tmp_path: Path) -> None:
    """Also where a counter has a single event, its first; and it ends when the fault has passed."""
    series = faulty(alert)
    fired = failures(series, alert, range(120), tmp_path, RULES)
    assert (fired[:1], fired[-1:]) == ([first], [last])
    for other in {one["alert"] for one in rules()} - {alert}:
        assert failures(series, other, range(0, 120, 5), tmp_path, RULES) == []
