"""A streams worker as a process of its own, for tests: `python -m tests.streams.shell.worker_process JSON`.

SIGTERM stops it cleanly. Exit status: 0 clean, 78 fatal, 1 anything else.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from tests.streams.shell.counting_fold import CountingFold
from tests.streams.shell.failpoint import kill_once
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.writer import KafkaWriter
from tracegrad.schemas.errors import FATAL_EXIT_STATUS, FatalError
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.facts import EPISODE_EVENTS
from tracegrad.schemas.topics import Stage, Topics
from tracegrad.streams.config import StreamRules
from tracegrad.streams.folds import build_fold
from tracegrad.streams.shell import worker
from tracegrad.streams.shell.config import StreamsHandles, WorkerWaits


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to run."""

    rules: StreamRules
    handles: StreamsHandles
    stage: Stage
    topics: Topics
    counting: dict[str, Any] | None = None
    """Arguments of CountingFold; None: the stage's own fold."""
    kill_once: str | None = None
    """A file; unless it exists, the process dies between its first output and the marker."""
    session_timeout_s: float = 6.0
    max_delay_s: float = 0.0
    """Acknowledgements arrive late by up to this, out of order."""
    is_outdated: bool = False
    """Of a release that does not know the schemas of `episode_events` yet."""


class _LateLog(KafkaLog):
    """Tells of acknowledgements after a random delay, in any order."""

    max_delay_s = 0.0

    def writer(self) -> KafkaWriter:
        writer = super().writer()
        append = writer.append

        def append_late(topic: str, **record: Any) -> Future[Position]:
            late: Future[Position] = Future()

            def settle(told: Future[Position]) -> None:
                if (error := told.exception()) is not None:
                    late.set_exception(error)
                else:
                    delay_s = random.uniform(0, self.max_delay_s)
                    threading.Timer(delay_s, late.set_result, [told.result()]).start()

            append(topic, **record).add_done_callback(settle)
            return late

        writer.append = append_late  # type: ignore[method-assign]
        return writer


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    log = KafkaLog(plan.handles.bootstrap_servers)
    if plan.max_delay_s:
        log = _LateLog(plan.handles.bootstrap_servers)
        log.max_delay_s = plan.max_delay_s
    if plan.is_outdated:
        EPISODE_EVENTS._released = ()
    if plan.counting is not None:
        fold: Any = CountingFold(**plan.counting)
    else:
        fold = build_fold(plan.stage, plan.rules, plan.topics)
    try:
        worker.run_fold(
            fold,
            plan.handles,
            topics=plan.topics,
            log=log,
            stop=stop,
            metrics=Metrics(),
            before_marker=kill_once(Path(plan.kill_once)) if plan.kill_once else lambda: None,
            waits=WorkerWaits(session_s=plan.session_timeout_s, commit_s=0.3),
        )
    except FatalError as error:
        logging.error("fatal: %s: %s", type(error).__name__, error)
        return FATAL_EXIT_STATUS
    except Exception as error:
        logging.exception("ended: %s", type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
