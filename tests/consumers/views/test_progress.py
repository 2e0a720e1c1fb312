"""How far a run is, at a glance: the sparkline, the time left, and what stands around them."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state, tell
from tests.versions import held_out
from tracegrad.consumers.views.held_out import held_out_of
from tracegrad.consumers.views.processes import ProcessRow, left_out_lines, process_lines, process_rows
from tracegrad.consumers.views.progress import (
    RunProgress,
    duration,
    glance_lines,
    next_lines,
    now_line,
    sampled_text,
    sparkline,
)
from tracegrad.consumers.views.results import results_of
from tracegrad.consumers.views.terminal import Event, StepLine
from tracegrad.schemas.metrics import CALLS, LAG
from tracegrad.schemas.records.process_status import (
    ProcessReport,
    ProcessState,
    ProcessStatus,
    SupervisedProcess,
)
from tracegrad.schemas.topics import Topic


def step(number: int, reward: float | None = 0.5, *, seconds: float = 6.0, tool_success: float | None = 0.9) -> Event:
    """One that ended."""
    line = StepLine(
        step=number,
        version=number,
        reward=reward,
        tool_success=tool_success,
        staleness=1.0,
        lag=3,
        open_episodes=4,
        waiting_groups=1,
        seconds=seconds,
    )
    return Event(kind="step", text=f"step {number}", step=line)


def scored(number: int, mean: float, at: int) -> Event:
    """A held-out pass."""
    return Event(kind="validation", text="", held_out=held_out_of(held_out(number, mean, version=at, step=at)))


def test_a_sparkline_rises_with_the_values() -> None:
    """From 0 to 1, or to more where there is more; a hole where nothing is known."""
    assert sparkline([0.0, 0.5, 1.0], 10, is_ascii=True) == "_+@"
    assert sparkline([0.0, None, math.nan, 1.0], 10, is_ascii=True) == "_  @"
    assert sparkline([0.0, 5.0, 10.0], 10, is_ascii=True) == "_+@"
    assert sparkline([-1.0, 1.0], 10, is_ascii=True) == "_@"
    assert sparkline([0.0] * 50 + [1.0] * 50, 4, is_ascii=True) == "__@@"
    assert sparkline([0.0, 1.0], 2) == "\u2581\u2588"
    assert sparkline([None], 5) == sparkline([], 5) == sparkline([1.0], 0) == ""


@given(st.lists(st.none() | st.floats(), max_size=200), st.integers(-3, 100), st.booleans())
@example([1.4e308, -4e307], 10, False)
def test_a_sparkline_is_never_wider_than_asked(values: list[float | None], width: int, is_ascii: bool) -> None:
    """Whatever the values are."""
    assert len(sparkline(values, width, is_ascii=is_ascii)) <= max(0, width)


@given(st.lists(st.none() | st.floats(-5, 5), max_size=30), st.integers(1, 200))
def test_no_line_is_wider_than_the_terminal(rewards: list[float | None], width: int) -> None:
    """However narrow that is."""
    progress = RunProgress(30)
    progress.add_event(scored(0, 0.0, 0))
    for number, reward in enumerate(rewards, 1):
        progress.add_event(step(number, reward))
    assert max(map(len, progress.lines(width))) <= width


def test_the_lines_tell_step_curve_scores_and_the_time_left() -> None:
    """By the median step; before the first one nothing but the held-out score."""
    progress = RunProgress(10)
    assert progress.lines(79) == [] and progress.left_s is None
    progress.add_event(scored(0, 0.0, 0))
    (only,) = progress.lines(79)
    assert only.startswith("held-out before: 0.000 (95% ")
    for number, seconds in ((1, 90.0), (2, 6.0), (3, 60.0), (4, 6.0)):
        progress.add_event(step(number, number / 4, seconds=seconds))
    progress.add_event(scored(1, 0.5, 2))
    progress.add_event(scored(2, 0.75, 4))
    first, second, third, fourth = progress.lines(79, is_ascii=True)
    assert first == "step 4 of 10, version 4, 36 s left"
    assert second == "reward 0.625 (all 4) -+#@"
    assert third.startswith("held-out before: 0.000") and fourth.startswith("held-out now:    0.750")
    progress.add_event(step(10))
    assert progress.lines(79)[0] == "step 10 of 10, version 10"


def test_a_glance_tells_step_reward_held_out_and_who_serves() -> None:
    """None wider than asked; of a run that has done nothing, nothing."""
    state = new_state()
    fold_all(state, small_run(), (Topic.TRAINING_STEPS, Topic.WEIGHTS))
    results = results_of(state, run="mine")
    lines = glance_lines(results, steps=80, served={"engine-0": 2}, width=76, is_ascii=True)
    assert lines[0] == "step 2 of 80, version 2" and lines[1].startswith("reward ")
    assert lines[2].startswith("held-out before: 0.000") and lines[3].startswith("held-out now:    1.000")
    assert lines[4] == "served: version 2 by engine-0"
    assert max(map(len, glance_lines(results, steps=80, served={}, width=20))) <= 20
    assert glance_lines(results_of(new_state(), run="mine"), steps=80, served={}, width=76) == []


def test_a_process_is_one_row_that_fits() -> None:
    """It says why of one that has died, of any other what it counted; nobody's text begins another row."""
    state = new_state()
    told: list[ProcessStatus] = [
        SupervisedProcess(process="llm", state=ProcessState.WAITING, num_restarts=2, why="killed\nby SIGKILL"),
        SupervisedProcess(process="trainer", state=ProcessState.RUNNING, pid=7, since_ms=1_000),
        ProcessReport(process="trainer", pid=7, since_ms=1_000, at_ms=9_000, counters={"steps": 12.0}),
    ]
    tell(state, Topic.PROCESS_STATUS, *told)
    dead, alive = process_lines(state, 9_000, 77)
    assert dead.split() == ["llm", "waiting", "0", "s,", "2", "restarts", "killed\\nby", "SIGKILL"]
    assert alive.split() == ["trainer", "running", "8", "s", "12", "steps"]
    assert [len(row) for row in process_lines(state, 9_000, 30)] == [30, 30]


def test_what_was_left_out_is_told_with_its_sentence() -> None:
    """Over all processes, the commonest first; a word that nobody explains is shown as it is."""
    state = new_state()
    counted: dict[str, dict[str, float]] = {
        "trainer": {"groups_excluded{reason=stale}": 2.0, "dead_letters{reason=of_mars}": 1.0},
        "llm": {"dead_letters{reason=too_large}": 3.0, "calls": 4.0},
        "tasks": {"dead_letters{reason=of_mars}": 1.0},
    }
    for process, counters in counted.items():
        tell(state, Topic.PROCESS_STATUS, ProcessReport(process=process, pid=7, since_ms=1, at_ms=2, counters=counters))
    assert left_out_lines(state) == [
        "2 groups excluded, stale: It was sampled by too old a version",
        "3 dead letters, too_large: It is larger than its topic allows",
        "2 dead letters, of_mars",
    ]


def row_of(*told: ProcessStatus, is_live: bool) -> ProcessRow:
    """Of one process."""
    (row,) = process_rows(tell(new_state(), Topic.PROCESS_STATUS, *told), is_live=is_live)
    return row


def test_what_a_process_that_died_had_counted_is_not_its_successors() -> None:
    """And of a run that has ended nothing runs, whatever was said last."""
    told = SupervisedProcess(process="llm", state=ProcessState.RUNNING, pid=2, num_restarts=1, why="exit status 1")
    report = ProcessReport(process="llm", pid=1, since_ms=0, at_ms=0, counters={"calls": 3.0})
    live = row_of(told, report, is_live=True)
    assert (live.state, live.pid, live.num_restarts, live.why, live.counted) == ("running", 2, 1, "exit status 1", [])
    counters = {CALLS.name: 3.0, LAG.name: 4.0}
    last = ProcessReport(process="llm", pid=2, since_ms=0, at_ms=0, counters=counters)
    ended = row_of(told, last, is_live=False)
    assert (ended.state, ended.pid, ended.counted) == ("ended", None, ["3 calls"]), "nothing is to come any more"
    assert row_of(told, last, is_live=True).counted == ["4 to come", "3 calls"]


@pytest.mark.parametrize(
    ("seconds", "said"), [(5.4, "5 s"), (89, "89 s"), (95, "2 min"), (5_340, "89 min"), (7_500, "2 h 05 min")]
)
def test_a_time_is_said_as_people_say_it(seconds: float, said: str) -> None:
    """Not more exactly than it is known."""
    assert duration(seconds) == said


def test_the_two_numbers_are_told_apart_in_a_line() -> None:
    """Greedy or not; where nothing is held out there is one number."""
    both = sampled_text(temperature=1.0, held_out_temperature=0.0)
    assert "sampled at temperature 1" in both and "likeliest" in both and "\n" not in both
    assert "held-out" not in sampled_text(temperature=1.0, held_out_temperature=None)
    assert sampled_text(temperature=1.0, held_out_temperature=0.5).count("at temperature") == 2


def test_what_comes_next_names_the_run() -> None:
    """Each in a command; nobody can be asked where there is no agent."""
    assert next_lines("mine", has_agent=True)[1].startswith("  tracegrad chat mine --before  ")
    assert not any("chat" in line for line in next_lines("mine", has_agent=False))
    assert next_lines("mine", has_agent=True, activate=".venv/bin/activate")[1].startswith("  . .venv/bin/activate  ")


@pytest.mark.parametrize(
    ("width", "told"),
    [
        pytest.param(80, "It waits: 0 of 8 groups are there, 36 agents are at work, 70 s", id="all"),
        pytest.param(60, "It waits: 0 of 8 groups are there, 70 s", id="clause"),
        pytest.param(20, "It waits: 0 of 8 gro", id="one-clause"),
    ],
)
def test_a_narrow_terminal_loses_clauses_not_how_long(width: int, told: str) -> None:
    """A screen that moves shows that it lives."""
    assert now_line("It waits: 0 of 8 groups are there, 36 agents are at work", 70, width) == told
