"""A row of `transitions` that cannot be decoded: the trainer stops, and after the mend it trains all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.trainer.material import group_bytes
from tests.trainer.run_loop import TOPICS, config_of, log_of, steps_of, train
from tracegrad.schemas.errors import RecordError, UnreadableError
from tracegrad.schemas.log import refusals
from tracegrad.schemas.records.training import surviving_steps
from tracegrad.schemas.records.transitions import GroupSummary, SegmentRow, decode_group
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.batch import groups

pytestmark = pytest.mark.torch


def test_a_row_of_unreadable_groups_stops_training_and_is_trained_after_the_mend(
    untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They still name their groups, so batches of them go by until the row is too long: no checkpoint of any."""
    values = [group_bytes(index) for index in range(16)]
    log = log_of([*values[:3], b"garbage", *values[3:]])
    settings = config_of(untied, tmp_path, steps=8, max_staleness=100)
    monkeypatch.setattr(refusals, "MAX_IN_A_ROW", 10)
    newer = set(values[5:])

    def outdated(data: bytes | None) -> tuple[GroupSummary, list[SegmentRow]]:
        if data in newer:
            raise RecordError("expected schema transitions/1, got transitions/2", reason="unknown_schema")
        return decode_group(data)

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(UnreadableError, match="10 in a row"):
            patch.setattr(groups, "decode_group", outdated)
            train(log, settings)
        letters = log.records(TOPICS.name(Topic.DEAD_LETTERS))
        assert [letter.value for letter in letters] == [b"garbage"] * len(letters)
    assert sum(len(step.excluded_ids) for step in steps_of(log)) > 0, "none of the row was read"
    train(log, settings)
    steps = surviving_steps(steps_of(log))
    assert [len(step.group_ids) for step in steps] == [2] * 8
    assert not any(step.excluded_ids for step in steps)
    assert all(letter.value == b"garbage" for letter in log.records(TOPICS.name(Topic.DEAD_LETTERS)))
