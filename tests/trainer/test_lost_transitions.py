"""A checkpoint whose offset names nothing any more, or another record: the trainer stops, and trains on nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.material import append_groups
from tests.trainer.run_loop import TRANSITIONS, config_of, new_log, steps_of, train
from tracegrad.schemas.errors import LogGapError

pytestmark = pytest.mark.torch


@pytest.fixture
def log() -> MemoryLog:
    """Of a run whose trainer has not begun."""
    return new_log()


def test_checkpoint_of_a_topic_that_was_made_anew_is_refused(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Its offset lies in the new one too, and names another group."""
    train(log, config_of(untied, tmp_path, steps=2))
    log.recreate_topic(TRANSITIONS)
    append_groups(log, TRANSITIONS, [record.value for record in new_log().records(TRANSITIONS)])
    with pytest.raises(LogGapError, match=r"made anew.*--run NAME"):
        train(log, config_of(untied, tmp_path, steps=4))
    assert [s.step for s in steps_of(log)] == [1, 2]


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "cut"])
def test_checkpoint_whose_offset_the_log_has_not_is_refused(
    log: MemoryLog, untied: Path, tmp_path: Path, is_deleted: bool
) -> None:
    """Retention took what comes next, or the log lost its end."""
    train(log, config_of(untied, tmp_path, steps=2))
    if is_deleted:
        log.truncate(TRANSITIONS, 0, begin=log.offsets(TRANSITIONS)[0].end)
    else:
        log.cut(TRANSITIONS, 0, end=2)
    with pytest.raises(LogGapError, match="start the run again"):
        train(log, config_of(untied, tmp_path, steps=4))
    assert [s.step for s in steps_of(log)] == [1, 2]
