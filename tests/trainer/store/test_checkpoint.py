"""Checkpoints: whole or not there, newest first, equal after a round trip."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors import safe_open

from tests.versions import RUN
from tracegrad.trainer.store import checkpoint
from tracegrad.trainer.store.checkpoint import Checkpoints, CheckpointState, Progress
from tracegrad.trainer.store.durable import whole_folder

pytestmark = pytest.mark.torch


def progress(step: int, *, epoch: int = 1) -> Progress:
    """After so many batches."""
    state = CheckpointState(
        policy="policy", run=RUN, step=step, version=step, base_version=step - 1, epoch=epoch, next_offset=8 * step
    )
    return Progress(state, dict.fromkeys(f"g{i}" for i in range(step)))


def save(checkpoints: Checkpoints, step: int, *, epoch: int = 1) -> None:
    """A small one."""
    checkpoints.save(progress(step, epoch=epoch), {"weights/a": torch.full((3,), float(step))})


def newest_step(checkpoints: Checkpoints) -> int:
    """Of what would be resumed."""
    loaded = checkpoints.load_newest()
    assert loaded is not None
    return loaded[0].state.step


def fail_reading(patch: pytest.MonkeyPatch, number: int, *, times: int, folder: str = "") -> None:
    """The first so many reads of tensors (under a folder of that name) fail with an errno."""
    left = [times]

    def failing(path: Path, framework: str) -> Any:
        if folder in str(path) and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return safe_open(path, framework)

    patch.setattr(checkpoint, "safe_open", failing)


def test_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    """Tensors, order of consumed groups, the files' names."""
    saved = progress(3)
    tensors = {
        "weights/a": torch.full((3,), 3.0),
        "weights/b": torch.randn(2, 2),
        "optimiser/a.step": torch.tensor(3.0),
        "rng/cpu": torch.get_rng_state(),
    }
    checkpoints = Checkpoints(tmp_path / "c", keep=2, retry_s=0.0)
    checkpoints.save(saved, tensors)
    loaded = checkpoints.load_newest()
    assert loaded is not None
    got, found = loaded
    assert got == saved
    assert list(got.consumed) == ["g0", "g1", "g2"]
    assert {file.name for file in got.state.files} == {"tensors.safetensors", "consumed.txt"}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(tensors[name], found[name]) for name in tensors)


def test_nothing_there_is_none(tmp_path: Path) -> None:
    """A fresh run."""
    assert Checkpoints(tmp_path / "c", keep=2, retry_s=0.0).load_newest() is None


def test_half_written_folder_is_ignored_and_removed(tmp_path: Path) -> None:
    """A killed writer's."""
    checkpoints = Checkpoints(tmp_path, keep=2, retry_s=0.0)
    save(checkpoints, 1)
    half = tmp_path / ".tmp-step-00000002-v2-e1-99"
    half.mkdir()
    (half / "state.json").write_text("{")
    assert newest_step(checkpoints) == 1
    assert not half.exists()


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "consumed.txt"])
def test_damaged_checkpoint_is_passed_over(name: str, tmp_path: Path) -> None:
    """A cut file is found by its sha256; the one before it is taken."""
    checkpoints = Checkpoints(tmp_path, keep=2, retry_s=0.0)
    save(checkpoints, 1)
    save(checkpoints, 2)
    damaged = tmp_path / "step-00000002-v2-e1" / name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert newest_step(checkpoints) == 1
    assert newest_step(checkpoints) == 1
    assert list(tmp_path.rglob(name))[1:], "what could not be read was deleted"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_checkpoint_that_cannot_be_read_once_is_read_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system's moment: the second try has it."""
    checkpoints = Checkpoints(tmp_path, keep=2, retry_s=0.0)
    save(checkpoints, 1)
    save(checkpoints, 2)
    fail_reading(monkeypatch, number, times=1)
    assert newest_step(checkpoints) == 2


def test_checkpoint_set_aside_is_tried_again_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one is used meanwhile; what is set aside counts for nothing in `keep` and is never deleted."""
    checkpoints = Checkpoints(tmp_path, keep=1, retry_s=0.0)
    save(checkpoints, 1)
    checkpoints = Checkpoints(tmp_path, keep=2, retry_s=0.0)
    save(checkpoints, 2)
    with monkeypatch.context() as patch:
        fail_reading(patch, errno.EIO, times=99, folder="step-00000002-v2-e1")
        assert newest_step(checkpoints) == 1
    assert newest_step(checkpoints) == 2
    with monkeypatch.context() as patch:
        fail_reading(patch, errno.EIO, times=99, folder="step-00000002-v2-e1")
        assert newest_step(checkpoints) == 1
    for step in (3, 4, 5):
        save(checkpoints, step, epoch=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000004-v4-e2",
        "step-00000005-v5-e2",
        "unread-step-00000002-v2-e1",
    ]


def test_checkpoints_of_which_none_can_be_read_are_no_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart tries again; training from step 0 would not."""
    checkpoints = Checkpoints(tmp_path, keep=2, retry_s=0.0)
    save(checkpoints, 1)
    with monkeypatch.context() as patch:
        fail_reading(patch, errno.ESTALE, times=99)
        with pytest.raises(OSError, match="step-00000001-v1-e1"):
            checkpoints.load_newest()
    assert newest_step(checkpoints) == 1


def test_a_folder_that_cannot_be_listed_is_no_fresh_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has published would be refused for good, as one that has lost its checkpoints."""
    checkpoints = Checkpoints(tmp_path, keep=2, retry_s=0.0)
    save(checkpoints, 1)

    def refuse(path: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(PermissionError):
            checkpoints.load_newest()
    assert newest_step(checkpoints) == 1


def test_last_ones_are_kept(tmp_path: Path) -> None:
    """Two of five."""
    checkpoints = Checkpoints(tmp_path, keep=2, retry_s=0.0)
    for step in range(1, 6):
        save(checkpoints, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004-v4-e1", "step-00000005-v5-e1"]


def test_higher_epoch_goes_before_a_higher_step(tmp_path: Path) -> None:
    """A trainer that lost its policy may have written on for a moment."""
    checkpoints = Checkpoints(tmp_path, keep=3, retry_s=0.0)
    save(checkpoints, 6, epoch=2)
    save(checkpoints, 7, epoch=1)
    assert newest_step(checkpoints) == 6


def test_failed_write_leaves_no_folder(tmp_path: Path) -> None:
    """Neither the target nor a temporary one."""
    with pytest.raises(OSError, match="disk full"), whole_folder(tmp_path / "target") as folder:
        (folder / "file").write_text("half")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []
