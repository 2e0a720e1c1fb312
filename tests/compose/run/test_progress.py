"""What the supervisor goes by: beats of a child's own work loop, and work done between its deaths."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.compose.run.children import QUICK, meanwhile
from tests.serving import until
from tracegrad.compose.beats import BeatRecord
from tracegrad.compose.run import process
from tracegrad.compose.run import supervisor as supervisor_module
from tracegrad.compose.run.process import Child, ProcessSpec, session_cpu_s
from tracegrad.compose.run.supervisor import Backoff, OutcomeKind, Supervisor
from tracegrad.schemas.errors import AWAY_EXIT_STATUS
from tracegrad.schemas.records.process_status import ProcessState

pytestmark = pytest.mark.slow

WITHIN_S = 4.0
WORKER = f"""
import pathlib, sys, threading, time
from tracegrad.compose.beats import beating
from tracegrad.schemas import beat

path, tries, work, status, hangs = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:])
tries.open("a").write("x")
beat.WITHIN_S = {WITHIN_S}
with beating(path, lambda: work):
    beat.beat()
    if status >= 0:
        sys.exit(status if len(tries.read_text()) < 7 else 0)
    # A thread that lives on beside the loop, as one that reports.
    threading.Thread(target=lambda: [(beat.beat(), time.sleep(0.05)) for _ in range(10_000)], daemon=True).start()
    while True:
        if len(tries.read_text()) <= hangs:
            time.sleep(600)
        beat.beat()
        time.sleep(0.05)
"""


def worker(folder: Path, *, work: int = 0, status: int = -1, hangs: int = 0, is_job: bool = True) -> ProcessSpec:
    """Beats for ever, or ends with `status` six times and then with 0; its first `hangs` lives hang at once."""
    beats = folder / "beats" / "worker"
    argv = (sys.executable, "-c", WORKER, str(beats), str(folder / "tries"), str(work), str(status), str(hangs))
    return ProcessSpec(name="worker", argv=argv, is_job=is_job, beats=beats)


def watch(supervisor: Supervisor, act: Callable[[], object]) -> None:
    """Runs the supervisor while another thread acts and then stops it."""

    def act_and_stop() -> None:
        act()
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(act_and_stop):
        supervisor.run()


def test_a_process_that_is_stopped_shortly_survives_and_one_that_is_stopped_for_long_is_restarted(
    tmp_path: Path,
) -> None:
    """SIGSTOP for a quarter of what its beats promise, then for ever."""
    said: list[str] = []
    supervisor = Supervisor([worker(tmp_path, is_job=False)], logs=tmp_path, backoff=QUICK, say=said.append)
    (child,) = supervisor.children

    def act() -> None:
        until(lambda: child.beat.num_turns, 30)
        first = child.pid or 0
        os.kill(first, signal.SIGSTOP)
        time.sleep(WITHIN_S / 4)
        os.kill(first, signal.SIGCONT)
        num_beats = child.beat.num_beats
        until(lambda: child.beat.num_beats > num_beats, 10)
        assert (child.pid, child.num_restarts) == (first, 0)
        os.kill(first, signal.SIGSTOP)
        deadline = time.monotonic() + 3 * WITHIN_S
        while not child.num_restarts and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(first, signal.SIGCONT) if not child.num_restarts else None
        assert child.num_restarts == 1
        until(lambda: child.state is ProcessState.RUNNING and child.pid != first, 10)

    watch(supervisor, act)
    assert [line for line in said if "worker is frozen: no sign of life for" in line]


def test_a_loop_that_hangs_is_restarted_though_a_thread_of_it_lives(tmp_path: Path) -> None:
    """Its own beats count alone; three hangs in a row without work end the run."""
    said: list[str] = []
    spec = worker(tmp_path, hangs=1, is_job=False)
    supervisor = Supervisor([spec], logs=tmp_path, backoff=QUICK, say=said.append)
    (child,) = supervisor.children
    watch(supervisor, lambda: until(lambda: child.num_restarts == 1, 60))
    assert any("frozen" in line for line in said)


def test_what_dies_without_work_ends_the_run_however_long_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that loads for minutes and dies, by a clock that is a thousand times as fast; the message says what was
    found and quotes its log."""
    fast = SimpleNamespace(monotonic=lambda: 1000.0 * time.monotonic(), time=time.time, sleep=time.sleep)
    for module in (process, supervisor_module):
        monkeypatch.setattr(module, "time", fast)
    spec = ProcessSpec(name="engine", argv=("/bin/sh", "-c", "sleep 0.4; echo no memory; kill -9 $$"))
    deadline = time.monotonic() + 10.0
    outcome = Supervisor([spec], logs=tmp_path, backoff=QUICK).run(is_done=lambda: time.monotonic() > deadline)
    assert outcome.kind is OutcomeKind.FATAL
    assert "died 3 times in a row and did no work in between" in outcome.why
    assert "perhaps the system ran out of memory" in outcome.why and "no memory" in outcome.why


@pytest.mark.parametrize(
    ("work", "status", "expected"),
    [(1, 1, OutcomeKind.DONE), (0, 1, OutcomeKind.FATAL), (0, AWAY_EXIT_STATUS, OutcomeKind.DONE)],
    ids=["works in between", "does nothing", "Kafka is away"],
)
def test_deaths_count_where_no_work_was_done_in_between(
    work: int, status: int, expected: OutcomeKind, tmp_path: Path
) -> None:
    """Six deaths, three allowed in a row; an end for want of Kafka is not the process's doing."""
    outcome = Supervisor([worker(tmp_path, work=work, status=status)], logs=tmp_path, backoff=QUICK).run()
    assert outcome.kind is expected
    assert len((tmp_path / "tries").read_text()) == (7 if expected is OutcomeKind.DONE else 3)


def test_an_idle_loop_that_turned_for_long_counts_as_work(tmp_path: Path) -> None:
    """A gateway that nobody asks anything for days may be killed more than eight times."""
    script = WORKER.replace("sys.exit(", "time.sleep(0.5); sys.exit(")
    spec = worker(tmp_path, status=1)
    spec = ProcessSpec(name="worker", argv=(*spec.argv[:2], script, *spec.argv[3:]), is_job=True, beats=spec.beats)
    backoff = Backoff(first_s=0.01, greatest_s=0.02, max_in_a_row=3, idle_s=0.2)
    assert Supervisor([spec], logs=tmp_path, backoff=backoff).run().kind is OutcomeKind.DONE


def test_a_supervisor_that_was_stopped_itself_kills_nobody(tmp_path: Path) -> None:
    """Whatever the clock says, a look counts for seconds."""
    child = Child(worker(tmp_path), tmp_path)
    child.state, child.beat = ProcessState.RUNNING, BeatRecord(num_beats=3, within_s=45.0)
    for _ in range(8):
        child.listen(3600.0)
    assert child.overdue == ""
    for _ in range(2):
        child.listen(3600.0)
    assert "no sign of life for 50 s" in child.overdue


@pytest.mark.parametrize(
    ("script", "is_frozen"), [("while :; do :; done", False), ("sleep 60", True)], ids=["computes", "stands still"]
)
def test_an_engine_that_does_not_answer_is_frozen_only_if_it_computes_nothing(
    script: str, is_frozen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load, or a long prompt on a CPU, holds up its answers; work is what it says it has served."""
    answers: list[Any] = [3]
    monkeypatch.setattr(process, "WITHIN_S", 1.0)
    spec = ProcessSpec(
        name="engine",
        argv=("/bin/sh", "-c", script),
        ask_work=lambda: answers.pop() if answers else None,
        ask_every_s=0.3,
    )
    child = Child(spec, tmp_path)
    child.start()
    try:
        ends = time.monotonic() + 4.0
        while time.monotonic() < ends and not child.overdue:
            child.listen(0.1)
            time.sleep(0.1)
        assert (child.beat.work, bool(child.overdue)) == (3, is_frozen)
        assert (session_cpu_s(child.pid or 0) > 0.5) is not is_frozen
    finally:
        child.kill()
