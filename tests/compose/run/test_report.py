"""What the report of a run says beside its numbers."""

from __future__ import annotations

from pathlib import Path

from tracegrad.compose.run.report import newest_folder
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.versions import Version


def test_the_model_is_the_newest_version_by_number(tmp_path: Path) -> None:
    """Version 10 comes after version 9; what is half-written, or no version, is passed over."""
    assert newest_folder(tmp_path) is None
    labels = [
        Version(run=RunHash("7c1f3e9a"), version=number, epoch=epoch).label for number, epoch in ((9, 2), (10, 1))
    ]
    for name in (*labels, f".tmp-{labels[0]}-77", "adapters"):
        (tmp_path / name).mkdir()
    assert newest_folder(tmp_path) == str(tmp_path / labels[1])
