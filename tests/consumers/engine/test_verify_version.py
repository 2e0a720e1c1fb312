"""Only complete, unchanged version folders under the root are served."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.fake_engine.weights import write_version
from tests.versions import label
from tracegrad.consumers.engine.weight_sync import verify_version
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records.weights import VersionManifest, WeightFile


def change(manifest: VersionManifest, **fields: object) -> VersionManifest:
    """The manifest with other fields."""
    return msgspec.structs.replace(manifest, **fields)


def truncate(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A half-written file."""
    (Path(manifest.uri) / "model.safetensors").write_text("1-")
    return manifest


def flip(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A file of the right size with another byte."""
    (Path(manifest.uri) / "model.safetensors").write_text(label(1, 2))
    return manifest


def remove(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A file that is not there."""
    (Path(manifest.uri) / "config.json").unlink()
    return manifest


def no_folder(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A folder that is not there."""
    return change(manifest, uri=manifest.uri + "x")


def elsewhere(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A sound folder outside the root, which has none of that name."""
    return write_version(outside, 2)


def upwards(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A path that leaves the root by dots."""
    write_version(outside, 2)
    return change(manifest, uri=f"{Path(manifest.uri).parent}/../outside/{label(2)}")


def linked_folder(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A symbolic link inside the root to a folder outside it."""
    target = write_version(outside, 1)
    link = Path(manifest.uri).parent / "link"
    link.symlink_to(target.uri)
    return change(manifest, uri=str(link))


def linked_file(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A file that is a symbolic link out of the folder, to equal bytes."""
    file = Path(manifest.uri) / "model.safetensors"
    outside.mkdir()
    file.rename(outside / "secret")
    file.symlink_to(outside / "secret")
    return manifest


def file_upwards(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A file name that leaves the folder."""
    other = write_version(Path(manifest.uri).parent, 2)
    file = msgspec.structs.replace(other.files[1], name=f"../{label(2)}/model.safetensors")
    return change(manifest, files=(manifest.files[0], file))


def relative(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A relative path, which would mean another folder in each process."""
    return change(manifest, uri=label(1))


def root_itself(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """The root is no version."""
    return change(manifest, uri=str(Path(manifest.uri).parent))


def no_files(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """Nothing to load."""
    return change(manifest, files=())


def directory_as_file(manifest: VersionManifest, outside: Path) -> VersionManifest:
    """A name that is a folder."""
    (Path(manifest.uri) / "sub").mkdir()
    return change(manifest, files=(*manifest.files, WeightFile(name="sub", bytes=0, sha256="")))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (truncate, "size"),
        (flip, "sha256"),
        (remove, "missing"),
        (no_folder, "missing"),
        (elsewhere, "uri"),
        (upwards, "uri"),
        (linked_folder, "uri"),
        (relative, "uri"),
        (root_itself, "uri"),
        (linked_file, "files"),
        (file_upwards, "files"),
        (no_files, "files"),
        (directory_as_file, "missing"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_unsound_version_is_refused_with_its_reason(
    tmp_path: Path, harm: Callable[[VersionManifest, Path], VersionManifest], reason: str
) -> None:
    """Each way to be wrong has its counter."""
    root = tmp_path / "weights"
    manifest = harm(write_version(root, 1), tmp_path / "outside")
    with pytest.raises(RecordError) as caught:
        verify_version(manifest, str(root))
    assert caught.value.reason == reason


def test_sound_version_is_given_by_its_real_folder(tmp_path: Path) -> None:
    """A root that is itself reached by a symbolic link is fine."""
    root = tmp_path / "weights"
    (tmp_path / "link").symlink_to(root)
    manifest = write_version(root, 1)
    through_link = change(manifest, uri=str(tmp_path / "link" / label(1)))
    assert verify_version(through_link, str(tmp_path / "link")) == Path(manifest.uri).resolve()


def test_a_version_that_was_moved_or_copied_with_its_run_is_found_under_the_new_root(tmp_path: Path) -> None:
    """Before the place where it was written, which may be another run's by now."""
    manifest, root = write_version(tmp_path / "weights", 1), tmp_path / "copy"
    shutil.copytree(tmp_path / "weights", root)
    (Path(manifest.uri) / "model.safetensors").write_text("1-")
    assert verify_version(manifest, str(root)) == root / label(1)
    shutil.rmtree(tmp_path / "weights")
    assert verify_version(manifest, str(root)) == root / label(1)
