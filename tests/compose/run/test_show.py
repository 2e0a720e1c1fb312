"""How a run's steps are printed."""

from __future__ import annotations

import io
import json

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
