"""The file of beats: written now and then, in place, and read without a clock of the other side."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.schemas.test_beat import Clock
from tracegrad.compose.beats import BeatRecord, beating, read_beat
from tracegrad.schemas.beat import START_S, WITHIN_S, beat, waiting


def test_a_beat_is_written_at_most_once_a_second_and_what_is_new_at_once(tmp_path: Path) -> None:
    """The loop's first turn, the first work, another promise; not each of a thousand turns."""
    path, clock, work = tmp_path / "beats" / "trainer", Clock(), [0]
    with beating(path, lambda: work[0], clock=clock):
        assert read_beat(path) == BeatRecord(num_beats=1, within_s=START_S, doing="starting")
        for _ in range(1000):
            beat()
        assert read_beat(path) == BeatRecord(num_beats=2, num_turns=1, within_s=WITHIN_S, doing="")
        work[0] = 1
        beat()
        assert read_beat(path) == BeatRecord(num_beats=3, num_turns=1001, within_s=WITHIN_S, work=1, doing="")
        waiting("a load", 600.0)
        clock.now += 1.0
        beat()
        assert read_beat(path) == BeatRecord(num_beats=5, num_turns=1002, within_s=WITHIN_S, work=1, doing="")


def test_a_full_disk_ends_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what cannot be read is no beat."""

    def full(*_: object) -> int:
        raise OSError(28, "no space left")

    path = tmp_path / "beats"
    monkeypatch.setattr(os, "pwrite", full)
    with beating(path, lambda: 0):
        beat()
        assert read_beat(path) is None
    assert read_beat(tmp_path / "none") is None
