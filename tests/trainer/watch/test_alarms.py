"""What a trainer does at the first step at which an alarm holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.serving import Background, until
from tests.trainer.material import segment, summary, turn
from tests.trainer.run_loop import (
    TOPICS,
    config_of,
    lineage_of,
    log_of,
    new_log,
    request_rollback,
    steps_of,
    train,
)
from tracegrad.schemas.errors import DIVERGED_EXIT_STATUS, DivergedError
from tracegrad.schemas.metrics import ALARMS_BEGUN, Metrics
from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.records.transitions import encode_group
from tracegrad.trainer import loop
from tracegrad.trainer.run import run

pytestmark = pytest.mark.torch


def test_steps_whose_calls_are_all_masked_say_why_nothing_trains(
    untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the third; not again at the fourth."""
    forced = replace(turn(2, 5), masked="constrained")
    rows = [segment(name, [forced], mask=[0] * 8) for name in ("a", "b")]
    log = log_of([encode_group(summary(f"{n:024x}", ["a", "b"]), rows) for n in range(8)])
    metrics = train(log, config_of(untied, tmp_path))
    assert [(step.alarms, step.masked) for step in steps_of(log)] == [
        ((), {"constrained": 4}),
        ((), {"constrained": 4}),
        (("nothing_trains",), {"constrained": 4}),
        (("nothing_trains",), {"constrained": 4}),
    ]
    assert metrics.value(ALARMS_BEGUN, "nothing_trains") == 1
    words = "100% of groups `no_tokens`, 100% of their masked calls `constrained`: A grammar"
    assert f"alarm nothing_trains at step 3: the last 3 steps trained no token: {words}" in caplog.text
    assert "Let the agent force no answers" in caplog.text


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Makes `ess_low` hold at step 2 and from step 4 on; the steps that each judgement was shown."""
    shown: list[list[int]] = []

    def judged(steps: list[TrainingStep]) -> tuple[str, ...]:
        shown.append([step.step for step in steps])
        return ("ess_low",) if steps[-1].step in (2, 4, 5) else ()

    monkeypatch.setattr(loop, "alarms_of", judged)
    return shown


def test_an_alarm_stops_the_run_where_it_begins(
    low: list[list[int]], untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was trained is kept; the same command goes on, knows the steps before, and is not stopped by what held."""
    log: MemoryLog = new_log()
    for at in (2, 4):
        with pytest.raises(DivergedError, match=rf"ess_low at step {at}, .*\[alarms\] on") as told:
            train(log, config_of(untied, tmp_path, steps=5, on="stop"))
        assert told.value.exit_status == DIVERGED_EXIT_STATUS
    train(log, config_of(untied, tmp_path, steps=5, on="stop"))
    assert [(record.step, record.alarms) for record in steps_of(log)] == [
        (1, ()),
        (2, ("ess_low",)),
        (3, ()),
        (4, ("ess_low",)),
        (5, ("ess_low",)),
    ]
    assert low == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert caplog.text.count("alarm ess_low") == 2


@pytest.mark.parametrize("on", ["pause", "stop"])
def test_an_alarm_at_the_last_step_holds_nothing_up(
    on: str, low: list[list[int]], untied: Path, tmp_path: Path
) -> None:
    """The run is done."""
    log: MemoryLog = new_log()
    metrics = train(log, config_of(untied, tmp_path, steps=2, on=on))
    assert metrics.value(ALARMS_BEGUN, "ess_low") == 1
    assert [record.alarms for record in steps_of(log)] == [(), ("ess_low",)]


@pytest.mark.parametrize("every", [1, 5])
def test_an_alarm_pauses_the_training_until_the_run_is_started_again(
    every: int, low: list[list[int]], untied: Path, tmp_path: Path
) -> None:
    """The process lives, says so and rolls back; a stop ends the pause, and nothing is trained twice."""
    log, metrics = new_log(), Metrics()
    config = config_of(untied, tmp_path, steps=3, on="pause", checkpoint_every=every)
    with Background(lambda stop: run(*config, topics=TOPICS, log=log, stop=stop, metrics=metrics)) as paused:
        until(lambda: metrics.snapshot().get("paused_at_step") == 2)
        assert paused.is_alive()
        request_rollback(log, 1)
        until(lambda: max(lineage_of(log).versions) == 3)
    assert [record.step for record in steps_of(log)] == [1, 2]
    train(log, config)
    assert [record.step for record in steps_of(log)] == [1, 2, 3]
