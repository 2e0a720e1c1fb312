"""A resume from an older checkpoint than the newest version: the log is replayed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.run_loop import (
    audited,
    config_of,
    content,
    is_same,
    lineage_of,
    lose_checkpoints,
    request_rollback,
    steps_of,
    stopped_after,
    train,
)
from tests.versions import label
from tracegrad.schemas.records.training import TrainingStep, surviving_steps
from tracegrad.trainer.store.publish import Publisher

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _audited(log: MemoryLog) -> Iterator[None]:
    """Whatever was lost and replayed: to the audit each step and each version fits the others."""
    yield
    assert audited(log) == []


def checkpoints_of(work_dir: Path) -> list[int]:
    """The steps that have one."""
    return sorted(int(path.name.split("-")[1]) for path in (work_dir / "checkpoints").iterdir())


def figures(steps: list[TrainingStep]) -> list[tuple[object, ...]]:
    """What a replay must repeat."""
    return [(s.step, s.version, s.batch_hash, s.loss, s.grad_norm, s.accounting) for s in surviving_steps(steps)]


def test_equal_content_is_announced_again_under_the_new_epoch(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Two newest checkpoints lost: the numbers, the weights and the figures are what they were."""
    train(log, config_of(untied, tmp_path, keep_checkpoints=3))
    before, manifests = figures(steps_of(log)), lineage_of(log).versions
    lose_checkpoints(tmp_path, after=2)
    train(log, config_of(untied, tmp_path, keep_checkpoints=3, keep_versions=1))
    again = lineage_of(log).versions
    assert [m.label for _, m in sorted(again.items())] == [label(0), label(1), label(2), label(3, 2), label(4, 2)]
    assert all(again[version].files == manifests[version].files for version in again)
    assert Path(again[4].uri).is_dir()
    assert figures(steps_of(log)) == before


def test_lost_version_folders_are_written_again(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """By the replay, under their numbers: what they must hold is on the log."""
    train(log, config_of(untied, tmp_path, keep_checkpoints=3))
    manifests = lineage_of(log).versions
    lose_checkpoints(tmp_path, after=2)
    shutil.rmtree(tmp_path / "weights")
    train(log, config_of(untied, tmp_path, keep_checkpoints=3))
    again = lineage_of(log).versions
    assert sorted(again) == sorted(manifests)
    assert [Path(again[version].uri).is_dir() for version in (3, 4)] == [True, True]
    assert all(again[version].files == manifests[version].files for version in (3, 4))


def test_other_content_goes_above_the_newest_number(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Engines know versions 3 and 4: what is trained otherwise (here by another lr) is never called so."""
    train(log, config_of(untied, tmp_path, keep_checkpoints=3))
    known = content(log)
    lose_checkpoints(tmp_path, after=2)
    train(log, config_of(untied, tmp_path, lr=1e-3))
    lineage = lineage_of(log)
    assert sorted(lineage.versions) == [0, 1, 2, 3, 4, 5, 6]
    assert [(s.step, s.version) for s in surviving_steps(steps_of(log))] == [(1, 1), (2, 2), (3, 5), (4, 6)]
    assert [lineage.versions[version].base_version for version in (5, 6)] == [2, 5]
    found = content(log)
    assert is_same({v: found[v] for v in known}, known)


def test_rollback_after_an_older_checkpoint_takes_a_number_of_its_own(
    log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Its request is executed once more, before the steps that first preceded it."""
    train(log, config_of(untied, tmp_path, steps=3, keep_checkpoints=9))
    request_rollback(log, 1)
    train(log, config_of(untied, tmp_path, steps=4, keep_checkpoints=9))
    assert sorted(lineage_of(log).versions) == [0, 1, 2, 3, 4, 5]
    lose_checkpoints(tmp_path, after=2)
    train(log, config_of(untied, tmp_path, steps=4, keep_checkpoints=9))
    versions, found = lineage_of(log).versions, content(log)
    assert sorted(versions) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert is_same({0: found[6]}, {0: found[1]})
    assert [s.version for s in surviving_steps(steps_of(log))] == [1, 2, 7, 8]


def test_every_third_step_is_checkpointed_and_the_last(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """A finished run has nothing to do again."""
    config = config_of(untied, tmp_path, steps=5, checkpoint_every=3, keep_checkpoints=9)
    train(log, config)
    assert checkpoints_of(tmp_path) == [0, 3, 5]
    train(log, config)
    assert [s.step for s in steps_of(log)] == [1, 2, 3, 4, 5]


def test_stop_checkpoints_what_is_not(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """A trainer that is told to stop replays nothing when it comes back."""
    with stopped_after(2) as stop:
        train(log, config_of(untied, tmp_path, checkpoint_every=9), stop)
    assert checkpoints_of(tmp_path) == [0, 2]
    train(log, config_of(untied, tmp_path, checkpoint_every=9))
    assert [s.step for s in steps_of(log)] == [1, 2, 3, 4]


def test_announced_folder_is_there_however_few_are_kept(
    log: MemoryLog, untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 3 comes again where 4 is the newest and one is kept."""
    train(log, config_of(untied, tmp_path, keep_checkpoints=3))
    lose_checkpoints(tmp_path, after=2)
    original = Publisher.write
    there: dict[str, bool] = {}

    def watched(self: Publisher, *args: Any, **named: Any) -> Any:
        manifest = original(self, *args, **named)
        there[manifest.label] = Path(manifest.uri).is_dir()
        return manifest

    monkeypatch.setattr(Publisher, "write", watched)
    train(log, config_of(untied, tmp_path, keep_versions=1))
    assert there == {label(3, 2): True, label(4, 2): True}
