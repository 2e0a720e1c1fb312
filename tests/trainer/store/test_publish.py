"""Version folders: complete, described, retired."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from tests.versions import RUN, label
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.weights import VersionManifest
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.config import TrainerConfig, TrainerHandles
from tracegrad.trainer.model.policy import configure_torch, load_policy
from tracegrad.trainer.store.checkpoint import CheckpointState, Progress
from tracegrad.trainer.store.publish import Publisher

pytestmark = pytest.mark.torch


def publisher(base: Path, root: Path, *, keep: int = 0, held: Collection[int] = ()) -> Publisher:
    """Of a test's folder."""
    handles = TrainerHandles(run_hash=RUN, policy="policy", model=str(base), work_dir=str(root), seed=0)
    return Publisher(handles, keep=keep, is_held=held.__contains__)


def write(publisher: Publisher, learner: SingleLearner, version: int) -> VersionManifest:
    """A version of epoch 1."""
    state = CheckpointState(
        policy="policy", run=RUN, step=2 * version, version=version, base_version=version - 1, next_offset=8 * version
    )
    manifest = publisher.write(publisher.snapshot(learner, Progress(state), epoch=1))
    publisher.retire(version)
    return manifest


def loaded(base: Path, **changes: Any) -> SingleLearner:
    """Of a policy of the base."""
    config = TrainerConfig(**changes)
    return SingleLearner(load_policy(config, str(base), configure_torch(config, seed=0)), config, Recipe())


def test_manifest_describes_every_file(untied: Path, tmp_path: Path) -> None:
    """Names, sizes, sha256, and where training stood; config and tokenizer come from the base, an index of shards does
    not."""
    base = tmp_path / "base"
    base.mkdir()
    for path in untied.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    (base / "model.safetensors.index.json").write_text("{}")
    (base / "modeling.py").write_text("raise SystemExit")
    manifest = write(publisher(base, tmp_path), loaded(base), 3)
    folder = Path(manifest.uri)
    assert folder == tmp_path / "weights" / label(3)
    assert manifest.label == label(3)
    assert (manifest.step, manifest.base_version, manifest.next_offset) == (6, 2, 24)
    assert {file.name for file in manifest.files} == {path.name for path in folder.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"} <= {
        file.name for file in manifest.files
    }
    assert not {"model.safetensors.index.json", "modeling.py"} & {file.name for file in manifest.files}
    for file in manifest.files:
        data = (folder / file.name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.bytes, file.sha256)


def test_a_version_has_the_chat_template_that_the_run_names(untied: Path, tmp_path: Path) -> None:
    """In the file that wins over the tokenizer's, and in the manifest."""
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages }}")
    handles = TrainerHandles(
        run_hash=RUN, policy="policy", model=str(untied), work_dir=str(tmp_path), seed=0, chat_template=str(own)
    )
    manifest = write(Publisher(handles, keep=0, is_held=lambda _: False), loaded(untied), 1)
    assert (Path(manifest.uri) / "chat_template.jinja").read_text() == "{{ messages }}"
    assert "chat_template.jinja" in {file.name for file in manifest.files}


def test_config_names_the_dtype_that_was_written(untied: Path, tmp_path: Path) -> None:
    """A float32 base that trains in bfloat16 is served in bfloat16."""
    manifest = write(publisher(untied, tmp_path), loaded(untied, dtype="bfloat16"), 1)
    assert json.loads((Path(manifest.uri) / "config.json").read_text())["dtype"] == "bfloat16"


def test_float32_training_can_publish_bfloat16(untied: Path, tmp_path: Path) -> None:
    """The trained weights stay float32; files, and the config in them, are what the engine serves."""
    learner = loaded(untied, publish_dtype="bfloat16")
    folder = Path(write(publisher(untied, tmp_path), learner, 1).uri)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert {master.dtype for master in learner.policy.masters.values()} == {torch.float32}


def test_half_written_version_is_removed_at_start(untied: Path, tmp_path: Path) -> None:
    """A killed trainer's."""
    half = tmp_path / "weights" / ".tmp-v4-e1-7"
    half.mkdir(parents=True)
    publisher(untied, tmp_path)
    assert not half.exists()


def test_a_version_that_is_held_is_kept_until_it_is_not(untied: Path, tmp_path: Path) -> None:
    """Its adapters too, which a rollback to it needs."""
    held = {1}
    one, learner = publisher(untied, tmp_path, keep=1, held=held), loaded(untied, lora_rank=4)
    manifests = [write(one, learner, version) for version in range(4)]
    kept = [label(0), label(1), label(3)]
    for folder in ("weights", "adapters"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == kept
    one.recall(learner, manifests[1])
    held.clear()
    write(one, learner, 4)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [label(0), label(4)]


def test_old_versions_are_retired_but_the_first(untied: Path, tmp_path: Path) -> None:
    """The newest two and version 0."""
    one, learner = publisher(untied, tmp_path, keep=2), loaded(untied)
    for version in range(5):
        write(one, learner, version)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [label(0), label(3), label(4)]


@pytest.mark.parametrize(("room_for", "kept"), [(5, [0, 1, 2, 3, 4]), (4, [0, 2, 3, 4]), (3, [0, 2, 4])])
def test_versions_go_before_the_disk_is_full(
    room_for: int, kept: list[int], untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first, until what is to be written fits; never version 0, one that is held, or the newest."""
    one, learner = publisher(untied, tmp_path, keep=9, held={2}), loaded(untied)
    for version in range(5):
        write(one, learner, version)

    def free(folder: str) -> SimpleNamespace:
        assert folder == str(tmp_path)
        return SimpleNamespace(free=10 * (1 + room_for - len(list((tmp_path / "weights").iterdir()))))

    monkeypatch.setattr(shutil, "disk_usage", free)
    one.make_room(10)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [label(version) for version in kept]


@pytest.mark.parametrize("keep", [0, 9], ids=["all are to be kept", "some are not"])
def test_a_full_disk_ends_the_run_with_the_bytes(
    keep: int, untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart would find it as full; nothing that is held is deleted for it, or that the user wants to keep."""
    one, learner = publisher(untied, tmp_path, keep=keep), loaded(untied)
    for version in range(3):
        write(one, learner, version)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7))
    with pytest.raises(ConfigurationError, match=f"expected 10 bytes free under {tmp_path} .* got 7"):
        one.make_room(10)
    left = [label(version) for version in ((0, 1, 2) if not keep else (0, 2))]
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == left


@pytest.mark.parametrize("lora_rank", [None, 4], ids=["full", "lora"])
def test_recall_brings_old_weights_back(lora_rank: int | None, untied: Path, tmp_path: Path) -> None:
    """Bit for bit; adapters too, although the folder holds the merged model."""
    learner = loaded(untied, lora_rank=lora_rank)
    one = publisher(untied, tmp_path)
    manifest = write(one, learner, 0)
    before = {name: master.detach().clone() for name, master in learner.policy.masters.items()}
    learner.policy.restore({name: master + 1.0 for name, master in before.items()})
    one.recall(learner, manifest)
    assert all(torch.equal(before[name], master) for name, master in learner.policy.masters.items())


def test_recall_of_a_retired_version_is_an_error(untied: Path, tmp_path: Path) -> None:
    """Which the trainer turns into a refused rollback."""
    one, learner = publisher(untied, tmp_path, keep=1), loaded(untied)
    manifests = [write(one, learner, version) for version in range(3)]
    with pytest.raises(OSError):
        one.recall(learner, manifests[1])
