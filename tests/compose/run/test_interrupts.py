"""Two Ctrl-C of the supervisor, by real signals: heard whatever its thread does, the second one at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.compose.run.children import FOREVER, gone, meanwhile, shell
from tests.serving import until
from tracegrad.compose.run.process import ProcessSpec
from tracegrad.compose.run.supervisor import OutcomeKind, Supervisor

pytestmark = pytest.mark.slow


def deaf(folder: Path) -> ProcessSpec:
    """A child whose polite end would take a minute; `up` is there when it is, its id in `pid`."""
    return shell("deaf", f"trap '' TERM; echo $$ > {folder}/pid; touch {folder}/up; {FOREVER}", stop_s=60)


def test_second_interrupt_kills_all_at_once(tmp_path: Path) -> None:
    """Real SIGINTs; nobody waits for a polite end that takes a minute."""
    said: list[str] = []
    supervisor = Supervisor([deaf(tmp_path)], logs=tmp_path, say=said.append)

    def interrupt_twice() -> None:
        until((tmp_path / "up").exists, what="it is up")
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: bool(said), what="the first one was heard")
        os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    with meanwhile(interrupt_twice):
        supervisor.run()
    assert time.monotonic() - began < 10
    assert gone(int((tmp_path / "pid").read_text()))


def test_an_interrupt_while_a_line_is_printed_is_heard(tmp_path: Path) -> None:
    """The printer's lock is held then, by the thread that the signal interrupts."""
    printing, said = threading.Lock(), list[str]()

    def say(text: str) -> None:
        assert printing.acquire(timeout=10), "the printer is waited for by who holds it"
        said.append(text)
        printing.release()

    def interrupt(layer: int) -> None:
        with printing:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    supervisor = Supervisor([shell("idle", FOREVER)], logs=tmp_path, on_layer=interrupt, say=say)
    assert supervisor.run().kind is OutcomeKind.STOPPED
    assert said == ["stopping (Ctrl-C again to kill all at once)"]


@pytest.mark.parametrize("is_early", [False, True], ids=["while it waits", "before it is called"])
def test_second_interrupt_does_not_wait_for_who_still_reads(tmp_path: Path, is_early: bool) -> None:
    """`before_stop` takes a minute, and no signal wakes it; the processes are killed at once all the same."""
    is_joining, never = threading.Event(), threading.Event()

    def join() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as if it came just before the wait
        is_joining.set()
        never.wait(60)

    def hook(layer: int) -> None:
        if is_early:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    def interrupt_twice() -> None:
        if is_early:
            return
        until((tmp_path / "up").exists, what="it is up")
        os.kill(os.getpid(), signal.SIGINT)
        assert is_joining.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    supervisor = Supervisor([deaf(tmp_path)], logs=tmp_path, on_layer=hook, before_stop=lambda _: join())
    began = time.monotonic()
    with meanwhile(interrupt_twice):
        assert supervisor.run().kind is OutcomeKind.STOPPED
    assert time.monotonic() - began < 10
    assert is_joining.is_set() is not is_early
    assert all(status.pid is None for status in supervisor.statuses())
