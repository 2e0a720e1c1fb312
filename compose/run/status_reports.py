"""Tells `process_status` every 2 s how a process stands: each of itself, the supervisor of its children. And shows
the supervisor's own metrics.

In: a function that gives the records of now. Out: appends, from a thread of its own. Invariants: best effort and
bounded: one round is in flight at a time, a broker that is away loses rounds and never blocks or ends the process.
Not for what must not be lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from tracegrad.schemas.errors import TracegradError
from tracegrad.schemas.keys import process_key
from tracegrad.schemas.log.protocol import Log, LogWriter, Position
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessReport, ProcessStatus, process_name
from tracegrad.schemas.topics import Topic, Topics

from ..metrics.endpoint import announce, serving_metrics, target_file, withdraw
from .wiring import Wiring

_logger = logging.getLogger(__name__)
_SUPERVISOR = "supervisor"
_INTERVAL_S = 2.0
_LOG_EVERY_S = 10.0
_CLOSE_S = 1.0


class StatusReports:
    """The thread."""

    def __init__(
        self, log: Log, topics: Topics, now: Callable[[], Sequence[ProcessStatus]], *, interval_s: float = _INTERVAL_S
    ) -> None:
        """`now` gives one record for each key; called in the thread."""
        self._log = log
        self._topic = topics.name(Topic.PROCESS_STATUS)
        self._now = now
        self._interval_s = interval_s
        self._in_flight: list[Future[Position]] = []
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="status-reports", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something changed: the next round comes at once."""
        self._wake.set()

    def close(self) -> None:
        """After a last round; does not wait for a broker that is away. May be called again."""
        self._is_closing = True
        self.wake()
        self._thread.join(2 * _CLOSE_S)

    def _run(self) -> None:
        writer: LogWriter | None = None
        is_last = False
        while not is_last:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            is_last = self._is_closing
            try:
                writer = writer or self._log.writer()
                self._append(writer)
            except TracegradError as error:
                _logger.debug("not told how the process stands: %s", error)
        if writer is not None:
            with contextlib.suppress(TracegradError):
                writer.close(_CLOSE_S)

    def _append(self, writer: LogWriter) -> None:
        if not all(future.done() for future in self._in_flight):
            return
        self._in_flight = [
            writer.append(
                self._topic,
                key=process_key(status.process, "report" if isinstance(status, ProcessReport) else "supervised"),
                value=PROCESS_STATUS.encode(status),
            )
            for status in self._now()
        ]


@contextlib.contextmanager
def reporting(wiring: Wiring, process: str, metrics: Metrics) -> Iterator[None]:
    """Reports this process while it runs; its log gets a line now and then when something was counted."""
    since_ms = int(time.time() * 1000)
    said_at, said = time.monotonic(), metrics.snapshot()

    def now() -> list[ProcessStatus]:
        nonlocal said_at, said
        counters = metrics.snapshot()
        if counters != said and time.monotonic() - said_at >= _LOG_EVERY_S:
            said_at, said = time.monotonic(), counters
            _logger.info("%s: %s", process, " ".join(f"{name}={value:g}" for name, value in counters.items()))
        at_ms = int(time.time() * 1000)
        return [ProcessReport(process=process, pid=os.getpid(), since_ms=since_ms, at_ms=at_ms, counters=counters)]

    reports = StatusReports(wiring.log(), wiring.topics, now)
    try:
        yield
    finally:
        reports.close()


@contextlib.contextmanager
def metrics_shown(wiring: Wiring, processes: Sequence[str]) -> Iterator[Metrics]:
    """Those of the supervisor, to Prometheus; and where the engines are, which have some of their own.

    Args:
        wiring: of the run.
        processes: that the supervisor starts; an engine that somebody else started is shown too.
    """
    folder, run, metrics = wiring.run_dir.metrics, wiring.record.name, Metrics()
    engines = [
        (target_file(folder, run, name), name, url)
        for number, url in enumerate(wiring.endpoints.engine_urls)
        if (name := process_name("engine", None, number)) in processes or wiring.settings.engine.urls
    ]
    with serving_metrics(folder, run=run, process=_SUPERVISOR, metrics=metrics):
        for file, name, url in engines:
            with contextlib.suppress(OSError):  # said of the supervisor's own
                announce(file, url, run=run, process=name)
        try:
            yield metrics
        finally:
            for file, _, _ in engines:
                withdraw(file)
