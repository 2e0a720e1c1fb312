"""How a run's steps are printed."""

from __future__ import annotations

import io
import json
import os

import pytest

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import new_state, read
from tracegrad.compose.run.show import JsonShow, Show
from tracegrad.consumers.views.terminal import StepLines
from tracegrad.schemas.topics import Topic


def test_plain_and_json_lines() -> None:
    """One line per step each; a header once."""
    events = read(StepLines(), new_state(), small_run(), (Topic.TRAINING_STEPS,))
    plain, machine = io.StringIO(), io.StringIO()
    for event in events:
        Show(plain).event(event)
        JsonShow(machine).event(event)
    assert "reward" in plain.getvalue() and "0.250" in plain.getvalue()
    lines = [json.loads(line) for line in machine.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "step"] and lines[1]["version"] == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run prints to a file on a full disk is lost; the run goes on."""
    # The buffer that cannot be written is tried again by `close`, which the test leaves to the descriptor.
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        full = io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), write_through=True)
        monkeypatch.setattr("sys.stderr", full)
        Show(full).say("step 1")
        JsonShow(full).say("step 1")
        JsonShow(full).result("step", {"step": 1}, [])
    finally:
        os.close(descriptor)


def test_a_reader_that_left_ends_a_run() -> None:
    """`| head`: nobody is there to see the rest."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with pytest.raises(BrokenPipeError):
            Show(io.TextIOWrapper(io.FileIO(writer, "w", closefd=False), write_through=True)).say("step 1")
    finally:
        os.close(writer)
