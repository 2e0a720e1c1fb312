"""What a run waits for, in one sentence: the first thing that holds the rest up."""

from __future__ import annotations

from typing import Any

import pytest

from tracegrad.consumers.views.activity import Activity, open_of, trouble_of, waiting_text
from tracegrad.schemas.metrics import OPEN
from tracegrad.schemas.records.process_status import ProcessReport, ProcessState, SupervisedProcess

NOW = {
    "is_live": True,
    "step": 4,
    "steps": 80,
    "num_running": 8,
    "concurrency": 8,
    "num_waiting_groups": 3,
    "groups_per_step": 8,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"is_live": False}, "The run has ended after step 4 of 80: its command, given again, goes on."),
        ({"is_live": False, "step": 80}, "The run has ended after step 80."),
        ({"is_live": False, "steps": None}, "The run has ended after step 4."),
        ({"trouble": ("llm died: no memory",), "is_served": False}, "llm died: no memory."),
        ({"is_served": False, "step": 0}, "The engine loads its model; nothing is sampled until it serves."),
        ({"step": 80}, "All 80 steps are done; the report follows, and --keep goes on serving."),
        (
            {"step": 80, "held_out": "128 tasks"},
            "All 80 steps are done; the last held-out pass is under way: 128 tasks.",
        ),
        (
            {"step": 0, "held_out": "128 tasks"},
            "Training waits for the first held-out pass: 128 tasks, all 8 agents are at work.",
        ),
        ({"num_waiting_groups": None}, "Nothing is known of the groups that wait yet."),
        ({"num_waiting_groups": 9}, "The trainer works on step 5."),
        ({}, "The trainer waits for rollouts: 3 of 8 groups of step 5 are there, all 8 agents are at work."),
        (
            {"num_running": 2, "num_open_groups": 5},
            "The trainer waits for rollouts: 3 of 8 groups of step 5 are there, 2 of 8 agents are at work, 5 groups "
            "miss attempts.",
        ),
        (
            {"num_running": 0},
            "The trainer waits for rollouts: 3 of 8 groups of step 5 are there, no agent is at work, for no new group "
            "may be admitted until a newer version serves.",
        ),
        (
            {"num_running": 0, "concurrency": None, "steps": None, "num_open_episodes": 1},
            "The trainer waits for rollouts: 3 of 8 groups of step 5 are there, agents come by themselves, 1 episode "
            "is open.",
        ),
    ],
)
def test_a_run_says_what_it_waits_for(changed: dict[str, Any], expected: str) -> None:
    """Each case takes one thing away."""
    assert waiting_text(Activity(**{**NOW, **changed})) == expected


def test_what_workers_hold_open_is_of_their_stage() -> None:
    """Summed over the stage's workers."""
    reports = [
        ProcessReport(process=name, pid=1, since_ms=0, at_ms=0, counters={OPEN.name: 2.0})
        for name in ("streams-assemble-0", "streams-assemble-1", "streams-credit-0", "llm")
    ]
    assert (open_of(reports, "assemble"), open_of(reports, "credit"), open_of(reports, "normalize")) == (4, 2, 0)


def test_only_what_died_is_trouble() -> None:
    """What has not been started yet, or is done, is none."""

    def told(process: str, state: ProcessState, restarts: int) -> SupervisedProcess:
        return SupervisedProcess(process=process, state=state, num_restarts=restarts, why="exit status 1")

    found = trouble_of(
        [
            told("tasks", ProcessState.DONE, 1),
            told("trainer", ProcessState.FATAL, 0),
            told("llm", ProcessState.WAITING, 2),
            told("runner", ProcessState.WAITING, 0),
            told("otlp", ProcessState.RUNNING, 3),
        ]
    )
    assert found == (
        "llm died and is started again: exit status 1",
        "trainer cannot go on: exit status 1",
    )
