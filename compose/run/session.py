"""One start of a run in the foreground: lock, folder, processes, live view, report; `up`, `train` and `demo`.

In: checked settings and a folder. Out: an exit status. Invariants: one supervisor per run; the report is made while
the broker still answers; whatever happens, nothing is left running. Failure: TracegradError, or a status: 1 when a
process was fatal or the report's checks failed, 130 after Ctrl-C.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from tracegrad.consumers.views.activity import activity_in
from tracegrad.consumers.views.terminal import ArrivalLines, Lines, StepLines, TrafficLines
from tracegrad.consumers.views.watch import Watcher, known_lag
from tracegrad.schemas.errors import FATAL_EXIT_STATUS, ConfigurationError, UnavailableError

from . import pipeline
from .before_start import prepared, tasks_of
from .pipeline import PARTS_WITHOUT_MODEL, PipelinePart, prepare_topics, specs
from .process import ProcessSpec
from .run_dir import RunDir
from .settings import RunSettings
from .show import Show, introduce, offer
from .status_reports import StatusReports, metrics_shown
from .supervisor import Outcome, OutcomeKind, Supervisor, in_thread
from .view_state import run_state
from .wiring import Wiring

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT, as shells count."""
WatchFactory = Callable[[Wiring, Show], Watcher]
ReportMaker = Callable[[Wiring, Show], bool]
LastWords = Callable[[Wiring, Show], None]


def run_session(
    settings: RunSettings,
    path: Path,
    show: Show,
    *,
    for_training: bool,
    only: PipelinePart | None = None,
    keep: bool = False,
    watch: WatchFactory | None = None,
    report: ReportMaker | None = None,
    last_words: LastWords | None = None,
) -> int:
    """Runs the pipeline until it is done or a person stops it.

    Args:
        settings: of the run; path is its folder.
        show: prints.
        for_training: with tasks and runner; ends when they are done.
        only: a part of the pipeline.
        keep: after the report, go on until Ctrl-C, so that the topics can be looked at.
        watch: makes the live view, once the topics are there; None: steps.
        report: makes the report; returns whether its checks passed.
        last_words: said before the first process is stopped, of a run that ends before it is done.
    """
    try:
        run_dir = _no_replay(RunDir(path.resolve()))
        if only not in PARTS_WITHOUT_MODEL:
            settings.policy.needed_model()
        settings = _with_start_model(settings, run_dir, show.say)
        tasks = tasks_of(settings) if for_training or (settings.only_holds_out and only is None) else None
        with run_dir.lock():
            introduce(settings, show, for_training=for_training)
            wiring = prepared(settings, run_dir, show, only, tasks)
            processes = specs(wiring, for_training=for_training, only=only)
            onlookers = Onlookers(wiring, show, watch or watch_steps, last_words)
            return supervise(onlookers, processes, ends_with_jobs=for_training, keep=keep, report=report)
    finally:
        # Whatever was raised, the terminal gets its cursor back.
        show.close()


def replay_command(run_dir: RunDir) -> str | None:
    """What the user types to go on with the replay in a folder; None where none lies there."""
    made = run_dir.replayed
    if made is None:
        return None
    options = ["--source-dir", made.source, "--into", run_dir.path.name, "--runs-dir", str(run_dir.path.parent)]
    options += ["--reclose"] if made.reclose else []
    options += ["--mode", made.mode] if made.mode is not None else []
    reward = run_dir.settings.reward if made.grader else None
    command = ["regrade", "--grader", str(reward.grader)] if reward is not None else ["replay"]
    return f"tracegrad {shlex.join(command)} {made.asked or '--from earliest'} {shlex.join(options)}"


def _no_replay(run_dir: RunDir) -> RunDir:
    """The folder. Raises ConfigurationError where a replay lies in it."""
    command = replay_command(run_dir)
    if command is not None:
        raise ConfigurationError(
            f"{run_dir.path} holds a replay of another run, which only `replay` goes on with: {command}, and the FILE "
            "and the --set that it had; or start a run of another name (--run NAME)"
        )
    return run_dir


class Onlookers:
    """Who reads from and tells the broker beside the processes; they leave before the first process is stopped."""

    def __init__(self, wiring: Wiring, show: Show, watch: WatchFactory, last_words: LastWords | None = None) -> None:
        self.wiring = wiring
        self.show = show
        self._watch = watch
        self._last_words = last_words
        self._reports: StatusReports | None = None
        self._watcher: Watcher | None = None

    def open(self, supervisor: Supervisor, layer: int) -> None:
        """Makes the topics before the first layer above the broker, which must answer; tells of the page before its
        own."""
        if layer > 0 and self._watcher is None:
            prepare_topics(self.wiring)
            self._watcher = self._watch(self.wiring, self.show)
            self._watcher.start()
            self.start_reports(supervisor)
        if layer == pipeline.PAGE_LAYER:
            # A result: of a sentence the JSON form makes a line of its log, and the link has a token.
            link = self.wiring.page_link
            self.show.result("page", {"url": link}, [f"look at the run: {link}"])

    def start_reports(self, supervisor: Supervisor) -> None:
        """Tells of the supervisor's processes from now on."""
        self._reports = StatusReports(self.wiring.log(), self.wiring.topics, supervisor.statuses)

    def wake_reports(self) -> None:
        """A process changed state."""
        if self._reports is not None:
            self._reports.wake()

    def close(self, kind: OutcomeKind) -> None:
        """Waits a few seconds at most; called once a run of the supervisor."""
        if self._watcher is not None:
            self._watcher.close()
            if self._last_words is not None and kind is not OutcomeKind.DONE:
                self._last_words(self.wiring, self.show)
        if self._reports is not None:
            self._reports.close()


def supervise(
    onlookers: Onlookers,
    processes: Sequence[ProcessSpec],
    *,
    ends_with_jobs: bool,
    keep: bool = False,
    report: ReportMaker | None = None,
) -> int:
    """Runs them until the jobs are done, or a person stops it. Returns the exit status."""
    wiring, show, shown = onlookers.wiring, onlookers.show, ExitStack()
    supervisor = Supervisor(
        processes,
        logs=wiring.run_dir.logs,
        metrics=shown.enter_context(metrics_shown(wiring, [spec.name for spec in processes])),
        on_layer=lambda layer: onlookers.open(supervisor, layer),
        on_change=onlookers.wake_reports,
        say=show.say,
        before_stop=onlookers.close,
    )
    show.say(f"run {wiring.record.name} in {wiring.run_dir.path}")
    longest = "; the engine takes longest" if any(spec.name.startswith("engine") for spec in processes) else ""
    show.say(f"starting {len(processes)} processes{longest} (their logs: {wiring.run_dir.logs})")

    def is_kept(spec: ProcessSpec) -> bool:
        return keep or spec.name in (pipeline.BROKER, pipeline.PAGE)

    try:
        outcome = supervisor.run(keep=is_kept, is_done=None if ends_with_jobs else lambda: False)
        wiring.run_dir.write_outcome(outcome)
        status = 0
        if outcome.kind is OutcomeKind.DONE and report is not None:
            made = in_thread(partial(_make_report, report, wiring, show), "report")
            # The broker that the report is read from is looked after meanwhile: it may die as at any other time.
            outcome = supervisor.run(keep=is_kept, is_done=made.done)
            wiring.run_dir.write_outcome(outcome)
            status = made.result() if outcome.kind is OutcomeKind.DONE else status
        if outcome.kind is not OutcomeKind.DONE:
            return _ended_otherwise(outcome, wiring, show)
        if keep:
            show.say("the pipeline goes on (--keep); Ctrl-C stops it")
            onlookers.start_reports(supervisor)
            supervisor.run(is_done=lambda: False)
        return status
    finally:
        supervisor.close()
        shown.close()


def _make_report(report: ReportMaker, wiring: Wiring, show: Show) -> int:
    try:
        status = 0 if report(wiring, show) else 1
        offer(show, wiring.run_dir.path, wiring.settings)
        return status
    except UnavailableError as error:
        show.say(f"no report: {error}")
        return 1


def _ended_otherwise(outcome: Outcome, wiring: Wiring, show: Show) -> int:
    """Says why, and gives the exit status."""
    from ..engine.failed_start import explain

    if outcome.kind is OutcomeKind.FATAL:
        show.say(f"stopped: {outcome.why}")
        if outcome.why.startswith("engine:") and (reason := explain(outcome.why)):
            show.say(f"the engine: {reason}")
        return FATAL_EXIT_STATUS if outcome.exit_status == FATAL_EXIT_STATUS else 1
    if (command := replay_command(wiring.run_dir)) is not None:
        show.say(f"stopped; the same command goes on: {command}, and the FILE and the --set that it had")
    else:
        show.say(f"stopped; to resume it, give the same command with --run {wiring.record.name}")
    return INTERRUPTED


def watch_steps(wiring: Wiring, show: Show) -> Watcher:
    """The live view of a training run."""
    state = run_state(wiring)
    state.causes_since_ms = int(1000 * time.time())
    return Watcher(wiring.log(), wiring.topics, state, _step_lines(wiring), show.event, begin=wiring.run_dir.starts)


def _step_lines(wiring: Wiring) -> StepLines:
    settings = wiring.settings
    groups_per_step = settings.trainer.groups_per_step
    if wiring.run_dir.history is not None:
        return StepLines(on_alarm=settings.alarms.on, groups_per_step=groups_per_step)  # no stage works on it
    now = partial(
        activity_in,
        steps=settings.trainer.steps,
        groups_per_step=groups_per_step,
        concurrency=settings.agent.concurrency if settings.agent and not settings.only_holds_out else None,
    )
    return StepLines(partial(known_lag, wiring.log(), wiring.topics), settings.alarms.on, now, groups_per_step)


def watch_arrivals(wiring: Wiring, show: Show) -> Watcher:
    """The live view of `up`: what arrives from now on, and what is learnt from it."""
    settings = wiring.settings
    lines: Lines = ArrivalLines()
    if settings.select.train and settings.feedback is not None:
        lines = TrafficLines(
            _step_lines(wiring),
            wait_s=settings.streams.idle_s + settings.feedback.wait_s,
            max_staleness=settings.trainer.max_staleness,
            publish_every=settings.publish.every,
        )
    return Watcher(wiring.log(), wiring.topics, run_state(wiring), lines, show.event, begin="end")


def _with_start_model(settings: RunSettings, run_dir: RunDir, say: Callable[[str], None]) -> RunSettings:
    from .report import with_start_model  # reads topics, and is heavy

    return msgspec.structs.replace(settings, policy=with_start_model(settings.policy, run_dir, say))
