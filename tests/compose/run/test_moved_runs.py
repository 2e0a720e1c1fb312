"""Folders of runs that were moved, or cannot be written."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import msgspec
import pytest

from tracegrad.compose.files import write_record
from tracegrad.compose.history.request import known_source
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import ReplayRecord, RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.streams.config import SelectConfig
from tracegrad.trainer.history.config import History

SETTINGS = RunSettings(run="mine")


@pytest.mark.parametrize("is_made", [False, True])
def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    """Whether the run's folders are there or not; with what to do."""
    made = RunDir.create(tmp_path / "mine", SETTINGS) if is_made else RunDir(tmp_path / "mine")

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile" if is_made else "pathlib.Path.mkdir", refused)
    with pytest.raises(ConfigurationError) as told:
        RunDir.create(tmp_path / "mine", SETTINGS)
    got = re.escape(f"got {tmp_path / 'mine'}: Read-only file system")
    assert re.search(rf"--runs-dir: expected a folder .*{got}; make it writable, .*--runs-dir", str(told.value))
    with pytest.raises(ConfigurationError, match="expected a folder to write the run to"), made.lock():
        raise AssertionError("it is locked")


def test_runs_that_name_each_other_find_each_other_where_both_were_moved(tmp_path: Path) -> None:
    """A replay and its source, in a folder of runs that was renamed; a source that stays where it was is that one."""
    old, new = tmp_path / "runs", tmp_path / "archive"
    source = prepare_run(SETTINGS, old / "mine")
    selecting = msgspec.structs.replace(SETTINGS, run="again", select=SelectConfig(runs=(str(source.path),)))
    again = prepare_run(selecting, old / "again")
    asked = ReplayRecord(
        source=str(source.path), hash=source.record.hash, asked="", begin_ms=None, end_ms=None, reclose=False,
        mode="offline", rules={},
    )  # fmt: skip
    write_record(again.replay_file, asked)
    record = str(again.path / "history.jsonl")
    history = History(mode="offline", run=source.record.hash, end_offset=1, record=record)
    write_record(again.history_file, history)
    known = Wiring(again).keys
    assert (again.replayed, again.history) == (asked, history) and source.record.hash in known
    old.rename(new)
    moved = RunDir.open(new / "again")
    assert Wiring(moved).keys == known
    assert moved.replayed is not None and moved.replayed.source == str(new / "mine")
    assert moved.history is not None and moved.history.record == str(new / "again" / "history.jsonl")
    assert known_source(new / "again") == new / "mine"
