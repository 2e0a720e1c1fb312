"""A folder of exported files, of which no record passed our gateway, replayed as a source run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.compose.history.exporting import framed, json_lines, zstd
from tests.compose.history.test_foreign_kafka import episodes_of, exported, trace_ids
from tracegrad.compose.cli import app
from tracegrad.compose.history.exports import import_files as importing
from tracegrad.compose.history.foreign import ForeignFiles
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.session import INTERRUPTED
from tracegrad.compose.run.show import Show
from tracegrad.schemas.errors import ConfigurationError

CALL = {"model": "gpt-4o", "messages": [{"role": "user", "content": "2+2?"}], "answer": "4", "id": "r1"}


def replay(files: Path, folder: Path, *more: str) -> int:
    """Its exit status; raises what a user is told."""
    arguments = ["--from", f"files:{files}", "--into", "again", *more, "--runs-dir", str(folder)]
    status: int = app(["replay", *arguments], standalone_mode=False)
    return status


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """JSON lines, messages behind lengths, a packed file of them, and calls."""
    (folder := tmp_path / "files").mkdir()
    values = exported()
    (folder / "a.json").write_bytes(json_lines(values[:4]) + b"{broken\n")
    (folder / "b.pb").write_bytes(framed(values[4:8]))
    (folder / "c.pb.zst").write_bytes(zstd(framed(map(zstd, values[8:]))))
    (folder / "d.calls.jsonl").write_text(json.dumps(CALL) + "\n")
    return folder


@pytest.mark.kafka
@pytest.mark.timeout(400)
def test_files_become_episodes_of_all_their_traces_once(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends an import behind what is acknowledged, and the same command goes on; what lies in the folder later is
    not of the source."""
    monkeypatch.setattr(importing, "_WINDOW_RECORDS", 3)
    shown = Show.progress

    def interrupt(show: Show, name: str, fields: dict[str, Any], text: str) -> None:
        if name == "import":
            os.kill(os.getpid(), signal.SIGINT)
        shown(show, name, fields, text)

    with monkeypatch.context() as patched:
        patched.setattr(Show, "progress", interrupt)
        assert replay(files, tmp_path) == INTERRUPTED
    begun = importing.ImportProgress(**json.loads((tmp_path / "again-source" / "import.json").read_bytes()))
    assert 0 < begun.counts["spans"] < 2 * len(exported())
    assert not (tmp_path / "again").exists()
    assert replay(files, tmp_path) == 0
    told = capsys.readouterr().out
    assert "imported: 13 requests, 25 spans, 0 log records" in told
    assert "a.json, item 5: 7 bytes lost" in told
    # What spans tell of calls counts in a replay with [history] alone.
    assert "spans: 25 read = 24 in episodes + 1 of traces without call, agent or tool; 0 unaccounted" in told
    made = episodes_of(RunDir.open(tmp_path / "again"))
    assert len(made) == len(exported())
    assert {one.episode_id for one in made} == trace_ids(exported())
    (files / "e.json").write_bytes(json_lines(exported()))
    source = ForeignFiles(str(files)).source("again", tmp_path, Show())
    assert source is not None and source.path == tmp_path / "again-source"
    assert capsys.readouterr().out == ""


def test_what_cannot_be_a_source_is_refused_before_anything_is_written(files: Path, tmp_path: Path) -> None:
    """No file, and options of other sources; other files under a name that is taken."""
    with pytest.raises(ConfigurationError, match="expected a file, a folder with files, or a glob, got none"):
        replay(tmp_path / "none", tmp_path / "runs")
    for option in ("--since", "--bootstrap-servers", "--to", "--where"):
        with pytest.raises(ConfigurationError, match=f"{option} does not go with it"):
            replay(files, tmp_path / "runs", option, "PT1H")
    assert not (tmp_path / "runs").exists()
    (source := tmp_path / "runs" / "again-source").mkdir(parents=True)
    listed = {"asked": "/elsewhere", "root": "/", "files": [], "listed_ms": 1}
    (source / "files.json").write_text(json.dumps(listed))
    with pytest.raises(ConfigurationError, match="expected /elsewhere, of which"):
        replay(files, tmp_path / "runs")
