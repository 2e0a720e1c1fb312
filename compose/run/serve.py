"""One process of a run, in the foreground: `tracegrad serve NAME --run-dir DIR`, or, without the command line's
imports, `python -m tracegrad.compose.run.serve NAME --run-dir DIR`.

In: a name, an ordinal, a run's folder. Out: the room's loop, until it is done or told to stop. This entry point
owns what rooms must not: signal handlers, logging, the log's client, the metrics' report, the exit status.
Invariant: FatalError is 78 or 70 (the supervisor does not restart it), an end for want of Kafka is 75, any other
failure is 1, a clean stop is 0. One process per name and ordinal: the lock is the kernel's, so a dead holder never
blocks its successor.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tracegrad import __version__
from tracegrad.schemas.errors import (
    AWAY_EXIT_STATUS,
    FATAL_EXIT_STATUS,
    ConfigurationError,
    FatalError,
    TracegradError,
    UnavailableError,
)
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.process_status import process_name
from tracegrad.schemas.section import nearest
from tracegrad.schemas.topics import STREAMS, Stage

from ..beats import beating
from ..kafka.errors import LogThrottle
from ..loopback import inherited_fd, without_proxy
from ..metrics.endpoint import serving_metrics
from ..printable_log import log_to_stderr
from .run_dir import RunDir
from .status_reports import reporting
from .wiring import Wiring

_logger = logging.getLogger(__name__)
_LEAVES_S = 5.0
"""For a predecessor that was told to die."""


def serve(
    name: str,
    run_dir: Path,
    *,
    stage: str | None = None,
    ordinal: int = 0,
    run: Callable[[Wiring, threading.Event, Metrics], None] | None = None,
) -> int:
    """Runs the process; returns its exit status. Blocking; call it from the main thread. `run` is the loop of one that
    is none of NAMES."""
    process = process_name(name, stage, ordinal)
    _set_up_logging(run_dir.resolve().name, process)
    os.environ.update(without_proxy(os.environ))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    wiring: Wiring | None = None
    try:
        if run is None:
            _check_name(name, stage)
        folder = RunDir.open(run_dir)
        _check_release(name, folder)
        with folder.lock(f"serve-{process}", wait_s=_LEAVES_S):
            wiring, metrics = Wiring(folder, listening_fd=inherited_fd(os.environ)), Metrics()
            # The engine becomes another program, which reports nothing; its supervisor does.
            with contextlib.ExitStack() as shown:
                if name != "engine":
                    shown.enter_context(beating(folder.beats / process, lambda: int(metrics.work)))
                    shown.enter_context(reporting(wiring, process, metrics))
                    of_run = wiring.record.name
                    shown.enter_context(serving_metrics(folder.metrics, run=of_run, process=process, metrics=metrics))
                if run is not None:
                    run(wiring, stop, metrics)
                else:
                    _run(name, stage, ordinal, wiring, stop, metrics)
    except TracegradError as error:
        _logger.error("%s: %s", type(error).__name__, error)
        if isinstance(error, UnavailableError) and not _is_kafka_there(wiring):
            return AWAY_EXIT_STATUS
        return error.exit_status if isinstance(error, FatalError) else 1
    except ModuleNotFoundError as error:
        _logger.error("%s", lacking(error, f"serve {name}", _EXTRAS.get(name, "cli")))
        return FATAL_EXIT_STATUS
    except Exception:
        # The one outermost handler of the process: a fault of ours, which the supervisor answers by another try.
        _logger.exception("%s failed", name)
        return 1
    return 0


def _is_kafka_there(wiring: Wiring | None) -> bool:
    """Whether it answers now: a process that ended for want of it did nothing wrong."""
    if wiring is not None:
        try:
            wiring.kafka().admin.partition_counts()
        except UnavailableError:
            return False
    return True


def _set_up_logging(run: str = "", process: str = "") -> None:
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    log_to_stderr(logging.INFO, form, run=run, process=process)
    is_due = LogThrottle()
    for handler in logging.getLogger().handlers:
        # Of an away broker aiokafka writes hundreds of lines a second.
        handler.addFilter(lambda record: not record.name.startswith("aiokafka") or is_due(str(record.msg)))
    for noisy in ("abc", "aiokafka", "faust", "httpcore", "httpx", "kafka", "mode"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _check_name(name: str, stage: str | None) -> None:
    if name not in NAMES:
        raise ConfigurationError(f"no process {name!r}; {nearest(name, NAMES)}")
    if name == "streams" and stage not in STREAMS:
        raise ConfigurationError(f"serve streams: --stage must be one of {', '.join(STREAMS)}, got {stage!r}")


def _check_release(name: str, folder: RunDir) -> None:
    """Raises ConfigurationError: one bad record of it, the last step's say, and the others would wait for ever."""
    if (release := folder.endpoints.release) != __version__:
        raise ConfigurationError(
            f"expected tracegrad {release}, which started the run, got {__version__} in "
            f"{sys.executable} for serve {name}: install the same release in both environments ([trainer] python)"
        )


def _run(name: str, stage: str | None, ordinal: int, wiring: Wiring, stop: threading.Event, metrics: Metrics) -> None:
    """The room's loop. A process imports its own room only."""
    settings, log, topics, starts = wiring.settings, wiring.log(metrics), wiring.topics, wiring.run_dir.starts
    match name:
        case "otlp":
            from tracegrad.producers.otlp_gateway import app as otlp

            otlp.run(settings.otlp, wiring.otlp(), topics=topics, log=log, stop=stop, metrics=metrics)
        case "rewards":
            from tracegrad.producers.rewards import app as rewards

            rewards.run(*wiring.feedback(), topics=topics, log=log, stop=stop, metrics=metrics)
        case "llm":
            from tracegrad.producers.llm_gateway import app as llm

            llm_handles = wiring.llm(os.environ)
            llm.run(settings.llm, settings.policy, llm_handles, topics=topics, log=log, stop=stop, metrics=metrics)
        case "streams":
            from tracegrad.streams.folds import build_fold
            from tracegrad.streams.shell.worker import run_fold

            of = Stage(stage or "")
            fold = build_fold(of, wiring.stream_rules(), topics, metrics)
            run_fold(fold, wiring.streams(of, ordinal), topics=topics, log=log, stop=stop, metrics=metrics)
        case "tasks":
            from tracegrad.producers.tasks import admission

            tasks, pace, of_tasks = settings.tasks, settings.pace, wiring.tasks()
            assert tasks is not None
            admission.run(tasks, pace, of_tasks, topics=topics, log=log, stop=stop, metrics=metrics, starts=starts)
        case "runner":
            from tracegrad.producers.runner import runner

            agent, reward, of_runner = settings.agent, settings.reward, wiring.runner()
            assert agent is not None and reward is not None
            runner.run(agent, reward, of_runner, topics=topics, log=log, stop=stop, metrics=metrics, starts=starts)
        case "trainer":
            from tracegrad.trainer.run import run

            of_trainer = (settings.trainer, settings.algorithm, settings.alarms, wiring.trainer())
            run(*of_trainer, topics=topics, log=log, stop=stop, metrics=metrics)
        case "weight-sync":
            from tracegrad.consumers.engine import weight_sync

            weight_sync.run(wiring.weight_sync(ordinal), topics=topics, log=log, stop=stop, metrics=metrics)
        case "engine":
            from ..engine import server

            # Becomes vLLM, which has handlers of its own; ours die with this program's image.
            server.serve(settings.engine, wiring.engine(ordinal))


_EXTRAS = {
    "otlp": "gateway",
    "llm": "gateway",
    "rewards": "gateway",
    "streams": "streams",
    "tasks": "runner",
    "runner": "runner",
    "engine": "engine",
    "trainer": "trainer",
    "weight-sync": "engine",
}
"""Each process, and what brings its libraries."""
NAMES = tuple(_EXTRAS)


def lacking(error: ModuleNotFoundError, what: str, extra: str) -> str:
    """One sentence with the remedy, for a library that is not installed."""
    if (error.name or "").partition(".")[0] == "tracegrad":
        raise error  # ours: the installation is broken, and a traceback says where
    apart = (
        "; streams and trainer do not resolve together: [trainer] python gives it an environment of its own"
        if extra in ("streams", "trainer")
        else ""
    )
    return (
        f"{what} needs the module {error.name}, which is not in the environment of {sys.executable}: "
        f"pip install 'tracegrad[{extra}]' there, or the pinned lists of requirements/{apart}"
    )


def main() -> int:
    """The process that the supervisor starts."""
    parser = argparse.ArgumentParser(prog="python -m tracegrad.compose.run.serve", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--stage")
    parser.add_argument("--ordinal", type=int, default=0)
    given = parser.parse_args()
    return serve(given.name, given.run_dir, stage=given.stage, ordinal=given.ordinal)


if __name__ == "__main__":
    sys.exit(main())
