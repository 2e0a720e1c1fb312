"""A trainer is killed and, as on a GPU, learns otherwise when it repeats its steps: no group is too old for that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.material import append_groups, group_bytes
from tests.trainer.run_loop import (
    TRANSITIONS,
    Killed,
    after_each_step,
    audited,
    config_of,
    lineage_of,
    log_of,
    request_rollback,
    steps_of,
    train,
)
from tracegrad.schemas.records.training import TrainingStep, surviving_steps

pytestmark = pytest.mark.torch


def group_of(index: int, version: int) -> bytes:
    """One with an advantage."""
    return group_bytes(index, size=8, version=version)


def living(log: MemoryLog, *, dies_at: int = 0, rolls_back_at: int = 0) -> Callable[[TrainingStep], None]:
    """After each step engines serve its version, which samples the group of the batch after the next."""

    def live(step: TrainingStep) -> None:
        if step.step == rolls_back_at:
            request_rollback(log, 1)
        if len(log.records(TRANSITIONS)) == step.step + 1:
            newest = lineage_of(log).newest
            assert newest is not None
            append_groups(log, TRANSITIONS, [group_of(step.step + 1, newest.version)])
        if step.step == dies_at:
            raise Killed

    return live


@pytest.mark.parametrize("publish", [1, 4])
@pytest.mark.parametrize("rolls_back_at", [0, 3], ids=["", "after a rollback"])
def test_a_replay_that_learns_otherwise_trains_every_group(
    publish: int, rolls_back_at: int, untied: Path, tmp_path: Path
) -> None:
    """Twelve steps are repeated, under numbers above the newest; the bound is one version, or one and the rollback."""
    log, last = log_of([group_of(0, 0), group_of(1, 0)]), 12 + rolls_back_at
    given: dict[str, Any] = {"steps": last + 2, "groups_per_step": 1, "checkpoint_every": 99, "publish": publish}
    given["max_staleness"] = 1 + (rolls_back_at > 0)
    with pytest.raises(Killed), after_each_step(living(log, dies_at=last, rolls_back_at=rolls_back_at)):
        train(log, config_of(untied, tmp_path, **given))
    before = len(lineage_of(log).versions)
    with after_each_step(living(log)):
        train(log, config_of(untied, tmp_path, lr=1e-3, **given))
    steps = surviving_steps(steps_of(log))
    assert [len(step.group_ids) for step in steps] == [1] * (last + 2)
    assert {**steps[-1].accounting.excluded} == {}
    assert len(lineage_of(log).versions) > before + 2, "the replay was equal"
    assert max(step.staleness_max for step in steps) == (given["max_staleness"] if publish == 1 else 1)
    assert audited(log) == []
