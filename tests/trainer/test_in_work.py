"""A batch or a record that kills the trainer: tried three times, then named, never left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.run_loop import Killed, config_of, new_log, steps_of, train
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Record
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch import batches, groups

pytestmark = pytest.mark.torch

Poison = Callable[[pytest.MonkeyPatch, type[BaseException]], None]


@pytest.fixture
def log() -> MemoryLog:
    """Of a run whose trainer has not begun."""
    return new_log()


def in_step_2(patch: pytest.MonkeyPatch, death: type[BaseException]) -> None:
    """The step on offsets [2, 6) cannot be computed."""
    original = SingleLearner.step

    def step(self: SingleLearner, *updates: Any, **named: Any) -> Any:
        if named["step"] == 2:
            raise death
        return original(self, *updates, **named)

    patch.setattr(SingleLearner, "step", step)


def in_record_4(patch: pytest.MonkeyPatch, death: type[BaseException]) -> None:
    """The record at offset 4 cannot be decoded."""
    original = groups.judge

    def judge(record: Record, limits: Any) -> Any:
        if record.offset == 4:
            raise death
        return original(record, limits)

    patch.setattr(batches, "judge", judge)


@pytest.mark.parametrize("death", [Killed, MemoryError, RuntimeError])
@pytest.mark.parametrize(
    ("poison", "named"),
    [
        (
            in_step_2,
            r"offsets \[2, 6\) of 'mine.transitions' partition 0 .* 3 times \(1 groups, .* tokens; the longest"
            r" row, of \d+, is in the record at offset \d\).*micro_batch_tokens.*max_row_tokens",
        ),
        (in_record_4, r"offset 4 of 'mine.transitions' partition 0 .* 3 times \(\d+ bytes\)"),
    ],
    ids=["step", "record"],
)
def test_what_kills_three_times_is_named_and_not_left_out(
    poison: Poison, named: str, death: type[BaseException], log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """The fourth start says what to change before it tries; who has changed it trains on every batch."""
    config = config_of(untied, tmp_path)
    ends: list[BaseException] = []
    with pytest.MonkeyPatch.context() as patch:
        poison(patch, death)
        for _ in range(4):
            with pytest.raises(BaseException) as raised:
                train(log, config)
            ends.append(raised.value)
    assert [type(end) for end in ends] == [death, death, death, ConfigurationError]
    assert re.search(named, str(ends[-1]))
    assert [step.step for step in steps_of(log)] == [1]
    train(log, config)
    undisturbed = new_log()
    train(undisturbed, config_of(untied, tmp_path / "undisturbed"))
    assert [(s.batch_hash, s.loss) for s in steps_of(log)] == [(s.batch_hash, s.loss) for s in steps_of(undisturbed)]
    assert list((tmp_path / "in-work").iterdir()) == []


def test_another_batch_has_its_own_three_tries(
    log: MemoryLog, untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two deaths in each of four batches are anybody's doing: the run goes on to its end."""
    original, deaths = SingleLearner.step, dict.fromkeys(range(1, 5), 2)

    def step(self: SingleLearner, *updates: Any, **named: Any) -> Any:
        deaths[named["step"]] -= 1
        if deaths[named["step"]] >= 0:
            raise Killed
        return original(self, *updates, **named)

    monkeypatch.setattr(SingleLearner, "step", step)
    for _ in range(8):
        with pytest.raises(Killed):
            train(log, config_of(untied, tmp_path))
    train(log, config_of(untied, tmp_path))
    assert [step.step for step in steps_of(log)] == [1, 2, 3, 4]
