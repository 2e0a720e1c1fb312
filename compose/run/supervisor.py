"""Keeps the processes of a run alive, and ends them in order.

In: ProcessSpecs by layer. Out: an Outcome, once every job is done, something is fatal, or a person asked to stop.
Invariants: a layer starts when the gates below it are ready; what dies, or gives no sign of life, is started again
after a growing pause; what exits with 78, cannot start, or dies again and again and does no work in between, stops the
run and says why with its last log lines; nothing outlives `run`. First SIGINT or SIGTERM: stop in reverse order, each
within its time. Second: kill all at once. `run` must be called from the main thread: signals arrive there, and children
die with the thread that forked them.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
import types
from collections.abc import Callable, Sequence
from concurrent import futures
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from tracegrad.schemas.errors import AWAY_EXIT_STATUS, FATAL_EXIT_STATUS, UnavailableError
from tracegrad.schemas.metrics import PROCESS_RESTARTS, PROCESSES_RUNNING, Metrics
from tracegrad.schemas.records.process_status import ProcessState, SupervisedProcess

from .process import Child, ProcessSpec

Made = TypeVar("Made")

_logger = logging.getLogger(__name__)
_TICK_S = 0.1


class OutcomeKind(StrEnum):
    """Why a run of the supervisor ended."""

    DONE = "done"
    """Every job ended with 0."""
    STOPPED = "stopped"
    """A person asked, once or twice."""
    FATAL = "fatal"
    """A process cannot go on; `why` says which and why."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended."""

    kind: OutcomeKind
    why: str = ""
    exit_status: int | None = None
    """Of the process that was fatal, 78 where no start of it can work; None when it never ran."""
    at_ms: int = 0
    """When, by the supervisor's clock; 0: an earlier release did not say."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The pause before a restart."""

    first_s: float = 0.5
    """After the first death."""
    greatest_s: float = 15.0
    """Doubles up to this."""
    max_in_a_row: int = 8
    """Deaths in a row, with no unit of work done in between (`is_work` in schemas/metrics/), after which the run is
    given up, however long each life was: what loads slowly and dies must not do so for ever."""
    idle_s: float = 600.0
    """A work loop that turned for so long counts as work too: there was none."""

    def pause_s(self, failures: int) -> float:
        """Before the next try, after so many failures in a row."""
        return min(self.greatest_s, self.first_s * 2.0 ** max(0, failures - 1))


class Supervisor:
    """Owns the children of one run."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        logs: Path,
        backoff: Backoff | None = None,
        layer_patience_s: float = 180.0,
        metrics: Metrics | None = None,
        on_change: Callable[[], object] = lambda: None,
        on_layer: Callable[[int], None] = lambda _: None,
        before_stop: Callable[[OutcomeKind], object] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            specs: the processes, in the order in which they are started.
            logs: the folder of their logs.
            backoff: pauses between restarts.
            layer_patience_s: for `on_layer`, counted from its first failure: the gates below may take longer to be
                ready.
            metrics: where restarts are counted, and who runs.
            on_change: told whenever a process changed state.
            on_layer: called before each layer starts, with its number (to create topics when the broker is up);
                UnavailableError is tried again for a while, any other error stops all.
            before_stop: called with how a run ends, before its first process is stopped: who reads from the broker
                leaves here. The second interrupt breaks it off.
            say: a line for people.
        """
        self.children = [Child(spec, logs) for spec in sorted(specs, key=lambda spec: spec.layer)]
        self._backoff, self._layer_patience_s = backoff or Backoff(), layer_patience_s
        self._metrics = metrics or Metrics()
        self._tell = on_change
        self._on_layer = on_layer
        self._before_stop = before_stop
        self._say = say
        self._num_interrupts = 0
        self._is_answered = False
        self._open: list[Child] = []
        """Those whose layer's turn has come."""
        self._hook_failing_since: float | None = None
        self._ready: set[str] = set()
        self._given_up: set[str] = set()

    def statuses(self) -> list[SupervisedProcess]:
        """All children, for people; any thread."""
        return [child.status() for child in self.children]

    def run(
        self,
        *,
        keep: Callable[[ProcessSpec], bool] = lambda _: False,
        is_done: Callable[[], bool] | None = None,
    ) -> Outcome:
        """Starts all, watches, and stops all but those that `keep` names when every job is done, or `is_done` says so.

        Kept processes go on until `close`, or until the next `run`, which watches them again. Whatever ends `run`
        otherwise, nothing is left: a person, or a fatal process.
        """
        previous = {number: signal.signal(number, self._interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
        outcome = Outcome(kind=OutcomeKind.FATAL, why="the supervisor itself failed")
        try:
            outcome = self._watch(is_done or self._are_jobs_done)
            return outcome
        finally:
            done = outcome.kind is OutcomeKind.DONE
            self._call_before_stop(outcome.kind)
            self._stop([child for child in self.children if not (done and keep(child.spec))])
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_change(self) -> None:
        for child in self.children:
            self._metrics.set(PROCESSES_RUNNING, child.state is ProcessState.RUNNING, child.spec.name)
        self._tell()

    def close(self) -> None:
        """Stops what is still there, in order."""
        self._stop(self.children)

    def _interrupted(self, number: int, frame: types.FrameType | None) -> None:
        self._num_interrupts += 1

    def _answer(self) -> None:
        """Not in the handler, which may have interrupted the printer."""
        if self._num_interrupts and not self._is_answered:
            self._is_answered = True
            self._say("stopping (Ctrl-C again to kill all at once)")

    def _are_jobs_done(self) -> bool:
        jobs = [child for child in self.children if child.spec.is_job]
        return bool(jobs) and all(child.state is ProcessState.DONE for child in jobs)

    def _watch(self, is_done: Callable[[], bool]) -> Outcome:
        self._num_interrupts, self._is_answered = 0, False
        looked_at = time.monotonic()
        while True:
            if self._num_interrupts:
                self._answer()
                return Outcome(kind=OutcomeKind.STOPPED)
            self._open_next_layer()
            elapsed_s, looked_at = time.monotonic() - looked_at, time.monotonic()
            for child in self._open:
                self._look_after(child, elapsed_s)
                if child.state is ProcessState.FATAL and child.spec.is_spare:
                    self._do_without(child)
                elif child.state is ProcessState.FATAL:
                    self._on_change()
                    why = f"{child.spec.name}: {child.why}"
                    status = FATAL_EXIT_STATUS if child.is_hopeless else child.exit_status
                    return Outcome(kind=OutcomeKind.FATAL, why=why, exit_status=status)
            if is_done():
                return Outcome(kind=OutcomeKind.DONE)
            time.sleep(_TICK_S)

    def _do_without(self, child: Child) -> None:
        if child.spec.name not in self._given_up:
            self._given_up.add(child.spec.name)
            self._say(f"{child.spec.name} is given up, the run goes on without it: {child.why}")
            self._on_change()

    def _open_next_layer(self) -> None:
        if len(self._open) == len(self.children):
            return
        if not all(self._is_ready(child) for child in self._open if child.spec.is_ready):
            self._hook_failing_since = None
            return
        layer = self.children[len(self._open)].spec.layer
        try:
            self._on_layer(layer)
        except UnavailableError as error:
            # A broker that just started may be slow to answer its first questions. Not by `retry`, which would block:
            # between two tries signals are heard and the layers below looked after.
            self._hook_failing_since = self._hook_failing_since or time.monotonic()
            if time.monotonic() - self._hook_failing_since > self._layer_patience_s:
                raise
            _logger.warning("waiting: %s", error)
            return
        self._open += [child for child in self.children if child.spec.layer == layer]
        self._hook_failing_since = None

    def _is_ready(self, child: Child) -> bool:
        if child.state is not ProcessState.RUNNING:
            return child.state is ProcessState.DONE
        if child.spec.name in self._ready:
            return True
        if child.spec.is_ready is not None and child.spec.is_ready():
            self._ready.add(child.spec.name)
            child.has_served = True
            return True
        if time.monotonic() - child.started_at > child.spec.ready_timeout_s:
            late = f"not ready in {child.spec.ready_timeout_s:g} s"
            self._say(f"{child.spec.name} was {late}; killing it")
            child.strike(late)
        return False

    def _look_after(self, child: Child, elapsed_s: float) -> None:
        if child.state is ProcessState.RUNNING:
            if child.has_ended():
                self._ended(child)
                return
            child.listen(elapsed_s)
            if overdue := child.overdue:
                self._say(f"{child.spec.name} is {overdue}; killing it")
                child.strike(overdue)
        elif child.state is ProcessState.WAITING and time.monotonic() >= child.not_before:
            child.start()
            self._on_change()

    def _ended(self, child: Child) -> None:
        self._ready.discard(child.spec.name)
        if child.state is ProcessState.WAITING:
            turned_s = time.monotonic() - child.turned_at if child.turned_at is not None else 0.0
            did_work = child.beat.work > 0 or turned_s >= self._backoff.idle_s
            child.failures_in_a_row = 1 if did_work else child.failures_in_a_row + 1
            if child.exit_status == AWAY_EXIT_STATUS:
                # Not its doing; only the pause grows.
                child.failures_in_a_row = min(child.failures_in_a_row, self._backoff.max_in_a_row - 1)
            if child.failures_in_a_row >= self._backoff.max_in_a_row:
                child.state = ProcessState.FATAL
                child.why = (
                    f"died {child.failures_in_a_row} times in a row and did no work in between; mend what its log says "
                    f"and start the run again: {child.why}"
                )
            else:
                pause_s = self._backoff.pause_s(child.failures_in_a_row)
                child.num_restarts += 1
                self._metrics.add(PROCESS_RESTARTS, child.spec.name)
                child.not_before = time.monotonic() + pause_s
                self._say(f"{child.spec.name} died, restarting in {pause_s:g} s: {child.why}")
        self._on_change()

    def _stop(self, children: Sequence[Child]) -> None:
        """By layer, the highest first; the layers above a stubborn one never wait for it twice."""
        for layer in sorted({child.spec.layer for child in children}, reverse=True):
            of_layer = [child for child in children if child.spec.layer == layer]
            for child in of_layer:
                child.stop_listening()
            running = [child for child in of_layer if child.state is ProcessState.RUNNING]
            if self._num_interrupts < 2:
                for child in running:
                    child.ask_to_stop()
                self._wait(running)
            for child in running:
                child.kill()
            self._on_change()

    def _call_before_stop(self, kind: OutcomeKind) -> None:
        """Not in this thread: a signal that comes just before a wait for a lock does not wake it."""
        if self._num_interrupts < 2:
            left = in_thread(partial(self._before_stop, kind), "before-stop")
            while self._num_interrupts < 2:
                self._answer()
                if futures.wait([left], _TICK_S).done:
                    left.result()
                    return
        _logger.warning("interrupted twice: not waiting for who still reads")

    def _wait(self, running: Sequence[Child]) -> None:
        started = time.monotonic()
        left = list(running)
        while left and self._num_interrupts < 2:
            self._answer()
            waited_s = time.monotonic() - started
            late = [child for child in left if waited_s > child.spec.stop_timeout_s]
            for child in late:
                self._say(f"{child.spec.name} did not stop in {child.spec.stop_timeout_s:g} s; killing it")
                child.kill()
            left = [child for child in left if child not in late and not child.wait_stopped(0.02)]


def in_thread(make: Callable[[], Made], name: str) -> futures.Future[Made]:
    """Runs it beside the main thread, in which signals arrive; a process that ends does not wait for it."""
    made: futures.Future[Made] = futures.Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # whoever waits for the future raises it; else they would wait for ever
            made.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return made
