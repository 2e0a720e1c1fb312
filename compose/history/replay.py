"""A replay: a source run's history, folded again into a new run, and trained on.

    source's broker --> consumers/history --> new run's broker --> trainer

In: the source's folder, settings of the new run, what of the history is meant. Out: the new run's folder, as any run's;
an exit status. Invariants: the source is only read, a live one is undisturbed, and of one that has ended the broker is
opened from its folder for as long as it is read; a replay that was broken off goes on when it is called again. Failure:
ConfigurationError with the remedy; UnavailableError where a broker goes away.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from tracegrad.consumers.history.changes import Changes
from tracegrad.consumers.history.refold import Refold
from tracegrad.consumers.history.replay import History, ReplayProgress, replay
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.follow import decoded, read_to_end
from tracegrad.schemas.metrics import (
    AIR_FUNCTION_FAILED,
    AIR_PAYMENTS_LEFT_OUT,
    DEAD_LETTERS,
    RECORDS_REFUSED,
    UNVERIFIED,
    Metrics,
)
from tracegrad.schemas.policies import partition_of
from tracegrad.schemas.reasons import reason_text
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.topics import STREAMS, Stage, Topic
from tracegrad.streams.assemble.air.apply import Rewarder
from tracegrad.streams.assemble.air.function import PayFunction
from tracegrad.streams.assemble.fold import Assemble
from tracegrad.streams.assemble.write.again import make_again
from tracegrad.streams.config import StreamRules
from tracegrad.streams.folds import build_fold
from tracegrad.streams.ratings import rate_again
from tracegrad.trainer.history.compare import supervised
from tracegrad.trainer.history.config import History as TrainedHistory
from tracegrad.trainer.history.config import Mode

from ..files import write_atomically, write_record
from ..run.pipeline import history_specs, prepare_run, prepare_topics
from ..run.report import newest_folder, with_start_model
from ..run.run_dir import RunDir
from ..run.session import INTERRUPTED, Onlookers, supervise, watch_steps
from ..run.settings import RunSettings
from ..run.show import Show
from ..run.wiring import Wiring
from .exports.import_files import clock_rate
from .history_model import load_told_calls
from .rate_history import HistoryJudge, rating
from .regrade import Regrader, check_grader, regrading
from .request import ReplayRequest, check_same, check_source, remember, remembered, topics_between
from .run_broker import open_broker, own_broker
from .selection import select_history, told_size
from .trainable import check_vocabulary, why_nothing_trains

_TRAINED = (Topic.WEIGHTS, Topic.TRAINING_STEPS)
"""What a run tells of its training."""
_PROBLEMS = (
    *(f"{kind.name}{{" for kind in (AIR_FUNCTION_FAILED, DEAD_LETTERS, RECORDS_REFUSED, UNVERIFIED)),
    AIR_PAYMENTS_LEFT_OUT.name,
)
_FUNCTION_FAILED = f"{AIR_FUNCTION_FAILED.name}{{"
_ENOUGH = 20
"""Episodes behind which a function that failed on each is not asked about the rest: each may take its time limit."""


def replayed_settings(source: RunDir, settings: RunSettings, mode: Mode | None) -> RunSettings:
    """The settings of a run that replays another: it takes that one's rollouts; `filter` has a recipe of its own.

    Raises ConfigurationError where they name the source's own run.
    """
    if settings.run == source.record.name:
        raise ConfigurationError(
            f"--into {settings.run}: expected a new run's name, got the source's own; a replay makes another run"
        )
    runs = dict.fromkeys((*settings.select.runs, str(source.path)))
    algorithm = supervised(settings.algorithm) if mode == "filter" else settings.algorithm
    select = msgspec.structs.replace(settings.select, runs=tuple(runs))
    return msgspec.structs.replace(settings, select=select, algorithm=algorithm)


def history_settings(settings: RunSettings, mode: Mode | None) -> RunSettings:
    """The settings of a run of topics or files from elsewhere: all their episodes, and those that are rated train.

    Raises ConfigurationError where nothing could.
    """
    select = msgspec.structs.replace(settings.select, capture_all=True)
    if settings.history is None:
        if mode is not None:
            raise ConfigurationError(
                "--mode: expected a section [history] that names the models whose answers are to be learned, got none; "
                "put it into FILE, or --set 'history.models=[\"gpt-4o*\"]': --dry-run lists the models of the spans"
            )
        return msgspec.structs.replace(settings, select=select)
    settings.policy.needed_model()
    unscored = "air" if settings.replay.unrated == "train" else select.unscored
    select = msgspec.structs.replace(select, train=True, unscored=unscored)
    # A history that is only folded is compared by no recipe yet.
    algorithm = settings.algorithm if mode == "offline" else supervised(settings.algorithm)
    return msgspec.structs.replace(settings, select=select, algorithm=algorithm, tasks=None)


def run_replay(request: ReplayRequest, settings: RunSettings, path: Path, show: Show) -> int:
    """Folds the source's history into the run at `path`. Returns the exit status; call it from the main thread."""
    try:
        source = RunDir.open(request.source)
        check_source(request, source)
        if request.mode is not None or settings.history is not None:
            settings.policy.needed_model()
            policy = with_start_model(settings.policy, RunDir(path.resolve()), show.say)
            settings = msgspec.structs.replace(settings, policy=policy)
            check_vocabulary(source.settings.policy.model, settings.policy.model)
        _check_functions(settings)
        if request.grader:
            check_grader(settings)
        if request.mode == "same" and (told := check_same(request, source.settings, settings)):
            show.say(f"weights may differ in their last bits: {'; '.join(told)}")
        run_dir = RunDir(path.resolve())
        status = _made(request, source, settings, run_dir, show)
        if status or request.dry_run or request.mode is None:
            return status
        into = Wiring(run_dir)
        with run_dir.lock():
            onlookers = Onlookers(into, show, watch_steps)
            return supervise(onlookers, history_specs(into), ends_with_jobs=True, report=_report)
    finally:
        # Whatever was raised, the terminal gets its cursor back.
        show.close()


def _made(request: ReplayRequest, source: RunDir, settings: RunSettings, run_dir: RunDir, show: Show) -> int:
    """All that a trainer finds, made or found made. Returns the exit status."""
    if _is_folded(request, run_dir) and run_dir.history is not None:
        with run_dir.lock():
            remember(remembered(request, source, settings, run_dir), source, settings, run_dir)
            into = Wiring(prepare_run(settings, run_dir.path))
            with own_broker(into):
                return _say_untrained(into, show)
    with open_broker(source, say=show.say) as servers:
        of_source = Wiring(source, bootstrap_servers=servers)
        _ = of_source.keys  # one that is missing is said before anything is written
        if request.dry_run is None:
            return _write(request, of_source, settings, run_dir, show)
        history = select_history(request, of_source)
        if request.dry_run == "full":
            return _fold(request, history, of_source, None, settings, show)
        show.result("records", *told_size(history, of_source))
    return 0


def _is_folded(request: ReplayRequest, run_dir: RunDir) -> bool:
    """Whether only the training is left of what is asked for."""
    before = run_dir.replayed
    return request.mode is not None and request.dry_run is None and before is not None and before.is_folded


def _check_functions(settings: RunSettings) -> None:
    """Runs the user's own code once, before anything is written. Raises ConfigurationError."""
    settings.credit.resolve()
    if settings.air.enabled and settings.air.function is not None:
        PayFunction(settings.air.function, settings.air.function_limit_s).close()


def _write(request: ReplayRequest, source: Wiring, settings: RunSettings, run_dir: RunDir, show: Show) -> int:
    """All that a trainer finds. Returns the exit status."""
    request = remembered(request, source.run_dir, settings, run_dir)
    history = select_history(request, source) if not _is_folded(request, run_dir) else None
    with run_dir.lock():
        remember(request, source.run_dir, settings, run_dir)
        into = Wiring(prepare_run(settings, run_dir.path))
        with own_broker(into):
            prepare_topics(into)
            status = _fold(request, history, source, into, settings, show) if history is not None else 0
            if status == 0:
                remember(request, source.run_dir, settings, run_dir, is_folded=True)
            if status == 0 and request.mode is not None:
                _write_history(request.mode, source, into)
                status = _say_untrained(into, show)
    return status


def _say_untrained(into: Wiring, show: Show) -> int:
    """Before a trainer starts, which would publish its start model as version 0. Returns the exit status."""
    if why := why_nothing_trains(into):
        show.say(why)
    return int(bool(why))


def _report(into: Wiring, show: Show) -> bool:
    """How many groups were trained on, why others were not, and what came of it: whether anything."""
    topic = into.topics.name(Topic.TRAINING_STEPS)
    found = decoded(read_to_end(into.log(), topic), {topic: TRAINING_STEPS})
    steps = [step for _, step in found if isinstance(step, TrainingStep)]
    why = Counter(reason for step in steps for reason in step.excluded_ids.values())
    num = sum(len(step.group_ids) for step in steps)
    lines = [f"trained on {num} groups in {len(steps)} steps"]
    lines += [f"  not on {num_left}: {reason_text(reason)}" for reason, num_left in why.items()]
    show.result("trained", {"groups": num, **why}, lines)
    model = newest_folder(into.run_dir.weights)
    show.result("model", {"folder": model}, [f"model: {model or 'none was published'}"])
    return not steps or any(step.is_updated for step in steps)


@contextlib.contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set within the block: what was made by then is written. Outside of it they end
    the program, wherever it waits."""
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _write_history(mode: Mode, source: Wiring, into: Wiring) -> None:
    """What the trainer is told: how to train, to where, and what the source did."""
    record = into.run_dir.path / "history.jsonl"
    log, topics = source.log(is_history=True), source.topics
    told = [name for topic in _TRAINED if source.run_dir.has_topic(name := topics.name(topic))]
    values = (one.value for name in told for one in read_to_end(log, name) if one.value is not None)
    write_atomically(record, b"".join(value + b"\n" for value in values))
    end = into.log().offsets(into.topics.name(Topic.TRANSITIONS))[partition_of(into.settings.policy.name)].end
    history = TrainedHistory(
        mode=mode, run=source.record.hash, end_offset=end, record=str(record), config=into.settings.replay
    )
    write_record(into.run_dir.history_file, history)


def _fold(
    request: ReplayRequest,
    history: History,
    source: Wiring,
    into: Wiring | None,
    settings: RunSettings,
    show: Show,
) -> int:
    metrics = Metrics()
    num_records = sum(at.end - at.begin for at in history.bounds.values())
    num_episodes = len(history.recorded.episodes)
    show.say(f"run {source.record.name}: {num_episodes} episodes recorded, {num_records} records to read")
    topics = topics_between(source.topics, settings.topics)
    log = source.log(metrics, is_history=True)
    changes = Changes(log, source.topics, history.recorded) if into is None else None
    with contextlib.ExitStack() as ends:
        stop = ends.enter_context(told_to_stop())
        judge, rules = _judge_and_rules(request, source, into, settings, metrics, ends)
        folds = {stage: build_fold(stage, rules, topics, metrics) for stage in STREAMS}
        if rules.history is not None:
            told_calls = load_told_calls(settings, source.record.hash)
            folds[Stage.ASSEMBLE] = Assemble(rules, topics, metrics, told_calls=told_calls, judge=judge)
        reward = Rewarder(rules.air, metrics)
        again = partial(make_again, rules=rules, topics=topics, metrics=metrics, reward=reward, judge=judge)
        rate = clock_rate(source.run_dir.path, idle_s := rules.streams.least_idle_s)
        refold = Refold(folds, again, rate_again, topics, history.recorded, idle_s=idle_s, clock_rate=rate)
        done = replay(
            history,
            log,
            refold,
            target=into.log(metrics) if into is not None else None,
            topics=topics,
            stop=stop,
            tell=lambda progress: _tell(show, progress, metrics),
            look=changes.add_output if changes is not None else None,
        )
    _tell(show, done, metrics)
    _tell_problems(show, metrics)
    if done.is_whole and not history.recorded.episodes:
        counts, text = refold.spans.report()
        show.result("spans", counts, [text])
    if changes is not None and done.is_whole:
        _tell_changes(show, changes)
    if done.is_whole and not stop.is_set():
        if judge is not None:
            judge.show_result(show)
        return 0
    show.say("stopped; the same command goes on")
    return INTERRUPTED


def _judge_and_rules(
    request: ReplayRequest,
    source: Wiring,
    into: Wiring | None,
    settings: RunSettings,
    metrics: Metrics,
    ends: contextlib.ExitStack,
) -> tuple[HistoryJudge | Regrader | None, StreamRules]:
    """Who rates episodes, where it is not those who did, and by what they are folded."""
    rules = (into or source.under(settings)).stream_rules()
    run_dir = into.run_dir if into is not None else None
    if settings.history is not None:
        judge = ends.enter_context(rating(settings, run_dir, metrics))
        return judge, msgspec.structs.replace(rules, history=settings.history)
    if not request.grader:
        return None, rules
    regrader = ends.enter_context(regrading(source, settings, run_dir))
    # What an earlier grader gave is looked at, and left out.
    return regrader, msgspec.structs.replace(rules, reward_sources=(*rules.reward_sources, *regrader.replaced))


def _tell(show: Show, progress: ReplayProgress, metrics: Metrics) -> None:
    """Raises ConfigurationError: as `check_function`."""
    show.progress("replay", msgspec.to_builtins(progress), progress.text)
    try:
        check_function(progress, metrics)
    except ConfigurationError:
        _tell_problems(show, metrics)
        raise


def check_function(progress: ReplayProgress, metrics: Metrics) -> None:
    """Raises ConfigurationError where the user's rule function has failed on every episode so far, and on enough."""
    num = progress.counts.get("episodes", 0)
    failed = {series: count for series, count in metrics.snapshot().items() if series.startswith(_FUNCTION_FAILED)}
    if num and sum(failed.values()) >= num and (num >= _ENOUGH or progress.is_whole):
        raise ConfigurationError(
            f"[air] function: it failed on each of {num} episodes, and pays nothing; mend it, and give the replay "
            "another name, or leave it out: --set air.enabled=false"
        )


def _tell_problems(show: Show, metrics: Metrics) -> None:
    """What was left out, of which warnings named the first alone."""
    told = {series: int(value) for series, value in metrics.snapshot().items() if series.startswith(_PROBLEMS)}
    if told:
        show.result("problems", told, [f"counted: {series} {value}" for series, value in told.items()])


def _tell_changes(show: Show, changes: Changes) -> None:
    episodes, groups = changes.totals()
    made = ", ".join(f"{changes.counts[what]} {what}" for what in ("spans", "calls", "tokens"))
    fields = {**changes.counts, "episodes": msgspec.to_builtins(episodes), "groups": msgspec.to_builtins(groups)}
    lines = [f"episodes: {episodes.text}", f"groups: {groups.text}", f"in the episodes: {made} sampled"]
    show.result("changes", fields, lines)
