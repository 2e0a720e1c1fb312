"""Whether a published version may be served: every file where the manifest says, inside the root, byte for byte.

In: a VersionManifest and the configured weight root. Out: the real folder, or RecordError whose reason is the
counter's name: `kind`, `uri`, `missing`, `files`, `size`, `sha256`, `unreadable`. Reads the files; changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records.weights import VersionManifest, WeightFile

__all__ = ["verify_version"]


def verify_version(manifest: VersionManifest, weight_root: str) -> Path:
    """The version's real folder, once each of its files was found complete and unchanged.

    Blocks for as long as hashing takes (about a second per gigabyte); call it before the engine is paused.

    Raises:
        RecordError: it must not be served; the message says which file, expected and got.
    """
    if manifest.kind != "full":
        raise RecordError(f"expected kind 'full', got {manifest.kind!r}, version {manifest.label}", reason="kind")
    root = Path(os.path.realpath(weight_root))
    folder = Path(os.path.realpath(manifest.uri))
    if not os.path.isabs(manifest.uri) or root not in folder.parents:
        raise RecordError(f"expected a folder under {root}, got {folder}, version {manifest.label}", reason="uri")
    if not folder.is_dir():
        raise RecordError(f"expected a folder at {folder}, got none, version {manifest.label}", reason="missing")
    if not any(file.name.endswith(".safetensors") for file in manifest.files):
        raise RecordError(f"expected safetensors files, got none, version {manifest.label}", reason="files")
    for file in manifest.files:
        _verify_file(folder, file)
    return folder


def _verify_file(folder: Path, file: WeightFile) -> None:
    path = Path(os.path.realpath(folder / file.name))
    if folder not in path.parents:
        raise RecordError(f"expected {file.name} inside {folder}, got {path}", reason="files")
    if not path.is_file():
        raise RecordError(f"expected file {path}, got none", reason="missing")
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file.bytes:
                raise RecordError(f"expected {file.bytes} bytes, got {size}, in {path}", reason="size")
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", reason="unreadable") from error
    if digest != file.sha256:
        raise RecordError(f"expected sha256 {file.sha256[:16]}..., got {digest[:16]}..., in {path}", reason="sha256")
