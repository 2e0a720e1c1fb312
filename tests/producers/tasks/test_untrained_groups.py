"""Tasks tell that nothing can train as groups close."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.producers.tasks.test_tasks import World, validated
from tests.streams.credit.test_credit import turns
from tracegrad.schemas.metrics import ALARMS_BEGUN
from tracegrad.schemas.records.calls import Purpose


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path) -> World:
    """As of test_tasks."""
    return World(memory_log, tmp_path)


def test_three_steps_of_groups_that_cannot_train_are_an_alarm_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Before a step says so; again only when some group could train in between."""
    world.ack(0)
    validated(world)
    calls = (msgspec.structs.replace(turns(0.0)[0], masked="constrained"),)
    told = []
    for number in (1, 2, 3, 4):
        for request in world.requests(Purpose.TRAIN)[4 * (number - 1) : 4 * number]:
            world.end(request, calls=calls)
        world.train()
        world.ack(number)
        world.turn()
        told.append((caplog.text.count("alarm nothing_trains"), world.metrics.value(ALARMS_BEGUN, "nothing_trains")))
    assert told == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert "none of the last 6 closed groups can train: 100% of groups `no_tokens`, 100% of their masked calls" in (
        caplog.text
    )
