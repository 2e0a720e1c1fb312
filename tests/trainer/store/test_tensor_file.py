"""A safetensors file of our own: the bytes that safetensors writes, and what is said of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from tracegrad.schemas.records.weights import WeightFile
from tracegrad.trainer.store import tensor_file
from tracegrad.trainer.store.tensor_file import describe_tensors, write_tensors

pytestmark = pytest.mark.torch

TENSORS = {
    "b": torch.arange(3, dtype=torch.uint8),
    "a": torch.randn(2, 3),
    'c"\u00e4': torch.tensor(7),
    "whole": torch.zeros(0, 3),
    "across": torch.randn(4, 5).T,
    **{str(dtype): torch.ones(3).to(dtype) for dtype in tensor_file._NAMES},
}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_it_is_byte_for_byte_what_safetensors_writes(
    metadata: dict[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each type that a model may have, in pieces too: a version of an older release has the sha256 of now."""
    monkeypatch.setattr(tensor_file, "_PIECE_BYTES", 16)
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, tmp_path / "theirs", metadata)
    told = write_tensors(tmp_path / "ours", TENSORS, metadata)
    written = (tmp_path / "ours").read_bytes()
    assert written == (tmp_path / "theirs").read_bytes()
    assert told == WeightFile(name="ours", bytes=len(written), sha256=hashlib.sha256(written).hexdigest())
    assert describe_tensors("ours", TENSORS, metadata) == told
