"""What the trainer tells as metrics is what stands on `training_steps`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.recorded import recorded_steps
from tracegrad.schemas.metrics import (
    ALARMS_HOLDING,
    LAST_STEP,
    REWARD,
    RULE_REWARD,
    STALENESS_BOUND,
    STEP_SECONDS,
    STEPS,
    TOKENS_TRAINED,
    TRAINING_STEP,
    VERSION,
    Metrics,
)
from tracegrad.trainer.step_figures import show_step


def test_counters_add_up_and_gauges_are_the_last_steps() -> None:
    """Of a recorded run, and what its alarms were is gone where they do not hold."""
    metrics, steps = Metrics(), recorded_steps("collapse-0")
    for record in steps:
        show_step(metrics, record)
        assert {*metrics.series().get(ALARMS_HOLDING, {})} == {(alarm,) for alarm in record.alarms}
    assert metrics.value(STEPS) == len(steps)
    assert metrics.value(TOKENS_TRAINED) == sum(record.num_tokens for record in steps)
    assert metrics.value(STEP_SECONDS) == pytest.approx(sum(sum(record.seconds.values()) for record in steps))
    assert metrics.value(REWARD) == steps[-1].reward
    assert {rule: paid for (rule,), paid in metrics.series()[RULE_REWARD].items()} == steps[-1].reward_parts


def test_a_figure_that_a_batch_lacks_is_not_that_of_the_batch_before() -> None:
    """A batch without any score shows no reward."""
    metrics, step = Metrics(), recorded_steps("clean-0")[0]
    show_step(metrics, step)
    show_step(metrics, msgspec.structs.replace(step, reward=None))
    assert REWARD not in metrics.series() and metrics.value(STEPS) == 2


@pytest.mark.torch
def test_a_trainer_that_is_started_again_stands_where_it_stood(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """By gauges; its counters begin anew."""
    from tests.trainer.run_loop import config_of, steps_of, train

    settings = config_of(untied, tmp_path)
    train(log, settings)
    again = train(log, settings)
    last = steps_of(log)[-1]
    assert again.value(TRAINING_STEP) == last.step and again.value(VERSION) == last.version
    assert again.value(LAST_STEP) == last.ended_at_ms / 1000
    assert again.value(STALENESS_BOUND) > 0 and again.value(STEPS) == 0
