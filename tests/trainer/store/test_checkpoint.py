"""Checkpoints: whole or not there, newest first, equal after a round trip."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tests.versions import RUN
from tracegrad.trainer.store.checkpoint import Checkpoint, Checkpoints, CheckpointState, capture_rng, restore_rng
from tracegrad.trainer.store.durable import whole_folder

pytestmark = pytest.mark.torch


def checkpoint(step: int, *, epoch: int = 1) -> Checkpoint:
    """Small, with every part filled."""
    return Checkpoint(
        state=CheckpointState(
            policy="policy", run=RUN, step=step, version=step, base_version=step - 1, epoch=epoch, next_offset=8 * step
        ),
        weights={"a": torch.full((3,), float(step)), "b": torch.randn(2, 2)},
        optimiser={"a.exp_avg": torch.randn(3), "a.step": torch.tensor(float(step))},
        rng=capture_rng(torch.device("cpu")),
        consumed=dict.fromkeys(f"g{i}" for i in range(step)),
        training_step=None,
    )


def newest_step(checkpoints: Checkpoints) -> int:
    """Of what would be resumed."""
    loaded = checkpoints.load_newest()
    assert loaded is not None
    return loaded.state.step


def test_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    """Tensors, order of consumed groups, generators."""
    saved = checkpoint(3)
    draws = torch.rand(4)
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    state = checkpoints.save(saved)
    loaded = checkpoints.load_newest()
    assert loaded is not None
    assert loaded.state == state
    for part in ("weights", "optimiser"):
        expected, got = getattr(saved, part), getattr(loaded, part)
        assert expected.keys() == got.keys()
        assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert list(loaded.consumed) == ["g0", "g1", "g2"]
    restore_rng(loaded.rng, torch.device("cpu"))
    assert torch.equal(torch.rand(4), draws)


def test_nothing_there_is_none(tmp_path: Path) -> None:
    """A fresh run."""
    assert Checkpoints(tmp_path / "c", keep=2).load_newest() is None


def test_half_written_folder_is_ignored_and_removed(tmp_path: Path) -> None:
    """A killed writer's."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(checkpoint(1))
    half = tmp_path / ".tmp-step-00000002-v2-e1-99"
    half.mkdir()
    (half / "state.json").write_text("{")
    assert newest_step(checkpoints) == 1
    assert not half.exists()


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "consumed.txt"])
def test_damaged_checkpoint_is_passed_over(name: str, tmp_path: Path) -> None:
    """A cut file is found by its sha256; the one before it is taken."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(checkpoint(1))
    checkpoints.save(checkpoint(2))
    damaged = tmp_path / "step-00000002-v2-e1" / name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert newest_step(checkpoints) == 1
    assert newest_step(checkpoints) == 1


def test_last_ones_are_kept(tmp_path: Path) -> None:
    """Two of five."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 6):
        checkpoints.save(checkpoint(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004-v4-e1", "step-00000005-v5-e1"]


def test_higher_epoch_goes_before_a_higher_step(tmp_path: Path) -> None:
    """A trainer that lost its policy may have written on for a moment."""
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(checkpoint(6, epoch=2))
    checkpoints.save(checkpoint(7, epoch=1))
    assert newest_step(checkpoints) == 6


def test_failed_write_leaves_no_folder(tmp_path: Path) -> None:
    """Neither the target nor a temporary one."""
    with pytest.raises(OSError, match="disk full"), whole_folder(tmp_path / "target") as folder:
        (folder / "file").write_text("half")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []
