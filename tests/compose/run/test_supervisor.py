"""The supervisor with real, tiny child processes: restart, fatal, order of stopping, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.compose.run.children import FOREVER, QUICK, gone, meanwhile, shell
from tests.serving import until
from tracegrad.compose.engine.failed_start import FailedStart, read_failed_start
from tracegrad.compose.run.process import ProcessSpec
from tracegrad.compose.run.supervisor import Backoff, OutcomeKind, Supervisor
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.records.process_status import ProcessState

pytestmark = pytest.mark.slow


def test_jobs_done_ends_the_run_and_stops_services(tmp_path: Path) -> None:
    """A job that exits with 0 is done; a service is stopped."""
    supervisor = Supervisor(
        [shell("serve", "exec sleep 60"), shell("job", "exit 0", layer=1, is_job=True)], logs=tmp_path
    )
    assert supervisor.run().kind is OutcomeKind.DONE
    assert [status.state for status in supervisor.statuses()] == [ProcessState.STOPPED, ProcessState.DONE]


def test_what_dies_is_restarted_after_a_pause(tmp_path: Path) -> None:
    """Two deaths, then success; each said with its last log line."""
    script = f"echo try >> {tmp_path}/tries; test $(wc -l < {tmp_path}/tries) -ge 3 || {{ echo oops; exit 1; }}"
    said: list[str] = []
    supervisor = Supervisor([shell("job", script, is_job=True)], logs=tmp_path, backoff=QUICK, say=said.append)
    assert supervisor.run().kind is OutcomeKind.DONE
    assert supervisor.statuses()[0].num_restarts == 2
    assert len(said) == 2 and all("exit status 1" in line and "oops" in line for line in said)


@pytest.mark.parametrize("status", [78, 70])
def test_exit_78_or_70_stops_the_run_and_says_why(status: int, tmp_path: Path) -> None:
    """A configuration error is not tried again."""
    supervisor = Supervisor(
        [shell("other", "exec sleep 60"), shell("bad", f"echo tries; echo no such topic >&2; exit {status}")],
        logs=tmp_path,
    )
    outcome = supervisor.run()
    assert outcome.kind is OutcomeKind.FATAL
    assert outcome.exit_status == status
    assert f"bad: exit status {status}" in outcome.why and "no such topic" in outcome.why
    told = {one.process: one.why for one in supervisor.statuses()}
    assert told["bad"].startswith(f"exit status {status}") and "last lines" not in told["bad"]
    assert (tmp_path / "bad.log").read_text().count("tries") == 1
    assert supervisor.statuses()[0].state is ProcessState.STOPPED


def test_what_dies_again_and_again_at_once_is_given_up(tmp_path: Path) -> None:
    """A crash loop must not look like a run."""
    outcome = Supervisor([shell("loop", "echo broken; exit 1")], logs=tmp_path, backoff=QUICK).run()
    assert outcome.kind is OutcomeKind.FATAL
    assert "died 3 times in a row" in outcome.why and "broken" in outcome.why
    assert outcome.exit_status == 1


@pytest.mark.parametrize("script", ["exit 78", "exit 1"], ids=["fatal", "dies again and again"])
def test_a_run_goes_on_without_what_is_spare(script: str, tmp_path: Path) -> None:
    """It is said once, and the job is done all the same."""
    said: list[str] = []
    spare = msgspec.structs.replace(shell("page", script), is_spare=True)
    job = shell("job", f"until grep -q . {tmp_path}/given-up; do sleep 0.02; done", is_job=True)

    def say(text: str) -> None:
        said.append(text)
        if "goes on without it" in text:
            (tmp_path / "given-up").write_text(text)

    supervisor = Supervisor([spare, job], logs=tmp_path, backoff=QUICK, say=say)
    (tmp_path / "given-up").touch()
    assert supervisor.run().kind is OutcomeKind.DONE
    assert sum("page is given up" in text for text in said) == 1
    assert {one.process: one.state for one in supervisor.statuses()}["page"] is ProcessState.FATAL


def test_a_program_that_does_not_exist_is_fatal(tmp_path: Path) -> None:
    """With its name."""
    outcome = Supervisor([ProcessSpec(name="x", argv=("/no/such/program",))], logs=tmp_path).run()
    assert outcome.kind is OutcomeKind.FATAL and "/no/such/program" in outcome.why
    assert outcome.exit_status is None


def test_what_can_never_work_is_not_tried_again(tmp_path: Path) -> None:
    """By what its log says; what has worked before is."""
    spec = shell("x", "echo unknown parser; exit 1")
    hopeless = msgspec.structs.replace(spec, diagnose=lambda log: FailedStart(is_lasting="unknown parser" in log))
    supervisor = Supervisor([hopeless], logs=tmp_path, backoff=QUICK)
    outcome = supervisor.run()
    assert outcome.kind is OutcomeKind.FATAL and outcome.why.endswith("unknown parser")
    assert outcome.exit_status == 78
    assert supervisor.children[0].num_restarts == 0
    unknown = msgspec.structs.replace(hopeless, diagnose=lambda _: FailedStart())
    assert "3 times in a row" in Supervisor([unknown], logs=tmp_path, backoff=QUICK).run().why


CAUSE = "Traceback (most recent call last):\n  File x\nKeyError: 'a' at 0x{}\n"
"""Of the n-th start; an address differs each time."""


@pytest.mark.parametrize(
    ("after", "last", "num_starts"),
    [
        ("exit 1", CAUSE, 2),
        ("[ $n -lt 4 ] && exit 75; exit 78", CAUSE, 4),
        ("kill -9 $$", CAUSE, 4),
        ("exit 1", CAUSE + "torch.OutOfMemoryError: CUDA out of memory\n", 4),
        ("exit 1", "Traceback (most recent call last):\n  File x\nKey{}Error: a\n", 4),
        ("exit 1", "broken {}\n", 4),
    ],
    ids=["the same cause", "Kafka is away", "killed", "memory", "another cause", "no exception"],
)
def test_what_dies_twice_of_one_cause_before_it_ever_served_is_not_tried_a_third_time(
    after: str, last: str, num_starts: int, tmp_path: Path
) -> None:
    """Where another start may fare better it is tried as ever; the cause stands in the first line, not on a topic."""
    (tmp_path / "cause").write_text(last)
    count = f"echo x >> {tmp_path}/starts; n=$(wc -l < {tmp_path}/starts)"
    word = "$(printf abcdef | cut -c$n)" if "Key{}" in last else "$n"
    script = f"{count}; sed s/{{}}/{word}/ {tmp_path}/cause; {after}"
    spec = msgspec.structs.replace(shell("x", script), diagnose=read_failed_start)
    backoff = msgspec.structs.replace(QUICK, max_in_a_row=4)
    outcome = Supervisor([spec], logs=tmp_path, backoff=backoff).run()
    assert outcome.kind is OutcomeKind.FATAL
    assert len((tmp_path / "starts").read_text().split()) == num_starts
    assert outcome.exit_status == (78 if num_starts == 2 or "78" in after else -9 if "kill" in after else 1)
    if num_starts == 2:
        assert "x: exit status 1; root cause: KeyError: 'a' at 0x2; last lines of" in outcome.why


def test_what_has_served_once_is_tried_again_though_it_dies_of_one_cause(tmp_path: Path) -> None:
    """It can start: what it lacks now may come back."""
    (tmp_path / "cause").write_text(CAUSE)
    script = f"touch {tmp_path}/up; sleep 0.3; cat {tmp_path}/cause; exit 1"
    spec = msgspec.structs.replace(
        shell("x", script), diagnose=read_failed_start, is_ready=lambda: (tmp_path / "up").exists()
    )
    outcome = Supervisor([spec, shell("next", "exec sleep 60", layer=1)], logs=tmp_path, backoff=QUICK).run()
    assert "3 times in a row" in outcome.why


def test_stops_in_reverse_order(tmp_path: Path) -> None:
    """The highest layer ends before the one below is asked."""

    def service(name: str, layer: int) -> ProcessSpec:
        script = f"trap 'echo {name} >> {tmp_path}/order; exit 0' TERM; touch {tmp_path}/{name}.up; {FOREVER}"
        return shell(name, script, layer=layer)

    supervisor = Supervisor([service("low", 0), service("middle", 1), service("high", 2)], logs=tmp_path)

    def stop() -> None:
        until(lambda: len(list(tmp_path.glob("*.up"))) == 3, what="all are up")
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(stop):
        assert supervisor.run().kind is OutcomeKind.STOPPED
    assert (tmp_path / "order").read_text().split() == ["high", "middle", "low"]


def test_a_stubborn_process_is_killed_at_its_time(tmp_path: Path) -> None:
    """Stopping is bounded, and what it left in its session dies with it."""
    script = f"trap '' TERM; sleep 61 & echo $! > {tmp_path}/grandchild; touch {tmp_path}/up; {FOREVER}"
    said: list[str] = []
    supervisor = Supervisor([shell("deaf", script, stop_s=0.1)], logs=tmp_path, say=said.append)

    def stop() -> None:
        until((tmp_path / "up").exists, what="it is up")
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(stop):
        supervisor.run()
    assert any("did not stop in 0.1 s" in line for line in said)
    until(lambda: gone(int((tmp_path / "grandchild").read_text())), what="the grandchild is gone")


def test_a_hook_is_tried_again_however_long_the_gate_below_took(tmp_path: Path) -> None:
    """A broker whose first download outlasts the hook's patience, and that is then slow to answer twice."""
    began = time.monotonic()
    calls: list[int] = []

    def hook(layer: int) -> None:
        calls.append(layer)
        if layer == 1 and calls.count(1) <= 2:
            raise UnavailableError("no answer yet")

    broker = ProcessSpec(
        name="broker",
        argv=("/bin/sh", "-c", "exec sleep 60"),
        is_ready=lambda: time.monotonic() - began > 1.0,
    )
    specs = [broker, shell("job", "exit 0", layer=1, is_job=True)]
    supervisor = Supervisor(specs, logs=tmp_path, layer_patience_s=0.5, on_layer=hook)
    assert supervisor.run().kind is OutcomeKind.DONE
    assert calls == [0, 1, 1, 1]


def test_a_hook_that_goes_on_failing_ends_the_run(tmp_path: Path) -> None:
    """Patience counts from its first failure, and ends."""

    def hook(layer: int) -> None:
        raise UnavailableError("no answer")

    with pytest.raises(UnavailableError, match="no answer"):
        Supervisor([shell("job", "exit 0", is_job=True)], logs=tmp_path, layer_patience_s=0.3, on_layer=hook).run()


def test_a_layer_waits_for_the_gates_below(tmp_path: Path) -> None:
    """on_layer runs between them, which is where topics are created."""
    layers: list[int] = []
    supervisor = Supervisor(
        [
            ProcessSpec(
                name="broker",
                argv=("/bin/sh", "-c", "exec sleep 60"),
                is_ready=lambda: False,
                ready_timeout_s=0.2,
            ),
            shell("user", f"touch {tmp_path}/started; exit 0", layer=1, is_job=True),
        ],
        logs=tmp_path,
        backoff=Backoff(first_s=0.01, greatest_s=0.01, max_in_a_row=2),
        on_layer=layers.append,
    )
    assert supervisor.run().kind is OutcomeKind.FATAL
    assert layers == [0] and not (tmp_path / "started").exists()


def test_what_the_caller_keeps_goes_on_until_close(tmp_path: Path) -> None:
    """The broker stays for the report."""
    supervisor = Supervisor(
        [shell("broker", "exec sleep 60"), shell("job", "exit 0", layer=1, is_job=True)], logs=tmp_path
    )
    supervisor.run(keep=lambda spec: spec.name == "broker")
    assert supervisor.statuses()[0].state is ProcessState.RUNNING
    supervisor.close()
    assert supervisor.statuses()[0].state is ProcessState.STOPPED


def test_an_error_of_ours_leaves_nothing_running(tmp_path: Path) -> None:
    """A layer hook that raises stops what is up."""

    def hook(layer: int) -> None:
        if layer == 1:
            raise ValueError("no topics")

    supervisor = Supervisor(
        [shell("broker", f"echo $$ > {tmp_path}/pid; exec sleep 60"), shell("b", "exit 0", layer=1)],
        logs=tmp_path,
        on_layer=hook,
    )
    with pytest.raises(ValueError, match="no topics"):
        supervisor.run()
    assert supervisor.statuses()[0].state is ProcessState.STOPPED


def test_no_orphan_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """SIGKILL to a supervisor: its children die too."""
    child = (
        "import os, pathlib, time; "
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    parent = (
        "import sys, pathlib; from tracegrad.compose.run.supervisor import Supervisor; "
        "from tracegrad.compose.run.process import ProcessSpec; "
        f"spec = ProcessSpec(name='c', argv=(sys.executable, '-c', {child!r})); "
        f"Supervisor([spec], logs=pathlib.Path({str(tmp_path)!r})).run()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", what="the child is up")
        pid = int((tmp_path / "pid").read_text())
        assert not gone(pid)
        process.kill()
        process.wait(10)
        until(lambda: gone(pid), what="the child is gone")
    finally:
        process.kill()
        process.wait(10)
