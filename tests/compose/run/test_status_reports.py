"""Reports of processes: best effort, bounded, never in the way."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from tests.memory_log import MemoryLog
from tests.streams.make import TOPICS
from tracegrad.compose.run.status_reports import StatusReports, reporting
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.metrics import CALLS, Metrics
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessReport, ProcessState, SupervisedProcess
from tracegrad.schemas.topics import Topic

NAME = TOPICS.name(Topic.PROCESS_STATUS)
CHILD = SupervisedProcess(process="llm", state=ProcessState.RUNNING, pid=7)


def new_log() -> MemoryLog:
    """With the run's topics."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    return log


def wait_for(log: MemoryLog, count: int) -> None:
    """Until so many reports lie there."""
    with log.changed:
        assert log.changed.wait_for(lambda: len(log.records(NAME)) >= count, 5)


def test_a_process_and_its_supervisor_write_side_by_side() -> None:
    """Two keys, so that compaction keeps the last word of both; a last round at the end."""
    log, metrics = new_log(), Metrics()
    wiring: Any = SimpleNamespace(log=lambda: log, topics=TOPICS)
    supervisor = StatusReports(log, TOPICS, lambda: [CHILD], interval_s=60)
    with reporting(wiring, "llm", metrics):
        metrics.add(CALLS)
    supervisor.close()
    newest = {record.key: PROCESS_STATUS.decode(record.value) for record in log.records(NAME)}
    report = newest[b"report/llm"]
    assert newest[b"supervised/llm"] == CHILD
    assert isinstance(report, ProcessReport) and report.counters == {"calls": 1}


def test_who_is_closed_before_its_thread_began_writes_its_last_round() -> None:
    """A process that ends at once."""

    class Late(StatusReports):
        def _run(self) -> None:
            while not self._is_closing:
                time.sleep(0.001)
            super()._run()

    log = new_log()
    Late(log, TOPICS, lambda: [CHILD], interval_s=60).close()
    assert [record.key for record in log.records(NAME)] == [b"supervised/llm"]


def test_a_change_is_told_at_once() -> None:
    """Not at the next interval."""
    log = new_log()
    reports = StatusReports(log, TOPICS, lambda: [CHILD], interval_s=60)
    reports.wake()
    wait_for(log, 1)
    reports.close()


def test_one_round_is_in_flight_at_a_time() -> None:
    """A broker that does not acknowledge gets no second one."""
    log = new_log()
    log.hold()
    reports = StatusReports(log, TOPICS, lambda: [CHILD], interval_s=0.001)
    wait_for(log, 1)
    time.sleep(0.05)
    assert log.num_unacknowledged() == 1
    log.release()
    wait_for(log, 2)
    reports.close()


def test_a_broker_that_is_away_blocks_and_ends_nothing() -> None:
    """Neither at the first writer, nor at an append, nor at the end; the next round that gets through is told."""
    log, tries = new_log(), threading.Event()

    def no_writer() -> None:
        tries.set()
        raise UnavailableError("away")

    away: Any = SimpleNamespace(writer=no_writer)
    reports = StatusReports(away, TOPICS, lambda: [CHILD], interval_s=0.001)
    assert tries.wait(5)
    began = time.monotonic()
    reports.close()
    log.fail_next(UnavailableError("away"))
    reports = StatusReports(log, TOPICS, lambda: [CHILD], interval_s=0.001)
    wait_for(log, 1)
    reports.close()
    assert time.monotonic() - began < 2
