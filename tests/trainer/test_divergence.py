"""Losses and weights that are no numbers: said aloud, never published, never a success."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.run_loop import config_of, lineage_of, steps_of, train
from tracegrad.schemas.errors import FATAL_EXIT_STATUS, FatalError
from tracegrad.trainer.model.policy import Policy

pytestmark = pytest.mark.torch


def test_non_finite_step_ends_the_run_and_not_as_a_success(
    log: MemoryLog, untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as the last one. It is recorded and consumed; who starts the run again goes on after it."""
    train(log, config_of(untied, tmp_path, steps=1))
    original = Policy.logprobs
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "logprobs", lambda *args, **named: original(*args, **named) * float("nan"))
        with pytest.raises(FatalError, match=r"step 2 .*offsets \[2, 6\).*lr") as raised:
            train(log, config_of(untied, tmp_path, steps=2))
    assert raised.value.exit_status != FATAL_EXIT_STATUS
    assert [(s.step, s.skipped) for s in steps_of(log)] == [(1, ""), (2, "non_finite")]
    train(log, config_of(untied, tmp_path, steps=3))
    assert [(s.step, s.skipped) for s in steps_of(log)][2:] == [(3, "")]


def test_weights_that_give_no_numbers_are_not_published(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Finite gradients led to them; the checkpoint before the step stays."""
    settings: dict[str, Any] = {"steps": 1, "warmup_steps": 0}
    with pytest.raises(FatalError, match=r"step 1 .*\[trainer\] lr"):
        train(log, config_of(untied, tmp_path, lr=1e15, **settings))
    assert sorted(lineage_of(log).versions) == [0]
    train(log, config_of(untied, tmp_path, **settings))
    assert sorted(lineage_of(log).versions) == [0, 1]
