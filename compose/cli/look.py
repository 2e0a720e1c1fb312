"""Look at a run: `status`, `tail`, `audit`. They read its folder and its topics, and change neither."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tracegrad.consumers.views.processes import left_out_lines, process_lines
from tracegrad.consumers.views.progress import glance_lines
from tracegrad.consumers.views.results import RESULTS_TOPICS, Results, results_of
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.watch import fold_present, fold_processes, stream_lag
from tracegrad.schemas.errors import NO_RUN_EXIT_STATUS, ConfigurationError, TracegradError
from tracegrad.schemas.log.follow import follow, read_to_end
from tracegrad.schemas.log.protocol import Log, Record, TopicPartition
from tracegrad.schemas.section import nearest
from tracegrad.schemas.topics import Topic

from ..files import MARK
from ..history.run_broker import is_running
from ..run.supervisor import Outcome, OutcomeKind
from ..run.view_state import run_state
from ..run.wiring import Wiring
from .common import (
    RUNS,
    JsonFlag,
    RunArgument,
    RunOption,
    RunsDirOption,
    answering,
    echo,
    find_run,
    reachable_log,
)
from .runs import state_of


def status(
    run: RunArgument = None,
    runs_dir: RunsDirOption = RUNS,
    as_json: JsonFlag = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all that each process counted.")] = False,
) -> None:
    """Show how far a run is, which version serves, and how its processes do.

    Says of a run that has ended why it did. Exits with 0 when it runs or is done, 1 when it ended otherwise, 3 when
    there is no such run.

    Example: tracegrad status mine --json
    """
    from ..run.report import causes_lines, read_results

    wiring = _asked_run(run, runs_dir)
    folder = wiring.run_dir
    is_up = is_running(folder)
    outcome = None if is_up else folder.outcome
    run_is = state_of(folder)
    state = run_state(wiring)
    asked_ms = int(time.time() * 1000)
    """Silence is counted up to here: reading may take seconds, in which nobody was listened to."""
    lag, num_dead = _look_at(wiring, state) if is_up else (None, 0)
    results = results_of(state, run=wiring.record.name) if is_up else read_results(folder)
    if as_json:
        fields = _fields(wiring, state) | {"is_running": is_up, "state": run_is, "outcome": outcome}
        fields |= {"results": results, "dead_letters": num_dead, "lag": lag}
        echo(msgspec.json.format(msgspec.json.encode(fields)).decode())
    else:
        echo(f"run {wiring.record.name} ({run_is}) in {folder.path}")
        lines = _place_lines(wiring, outcome)
        lines += _screen(wiring, state, results, asked_ms, is_short=sys.stdout.isatty() and not verbose)
        lines += causes_lines(results) if results is not None else []
        if lag is not None:
            lines.append(f"{lag} records wait or belong to what is still open")
        if num_dead:
            lines.append(f"{num_dead} dead letters: `tracegrad tail dead_letters`")
        echo("\n".join(f"  {line}" for line in (*lines, *left_out_lines(state))))
    raise typer.Exit(0 if run_is in ("running", OutcomeKind.DONE) else 1)


def _fields(wiring: Wiring, state: RunState) -> dict[str, object]:
    """Of the run and its processes."""
    return {
        "run": wiring.record.name,
        "folder": str(wiring.run_dir.path),
        "endpoints": wiring.endpoints,
        "processes": [*state.supervised.values()],
        "reports": [*state.reports.values()],
    }


def _place_lines(wiring: Wiring, outcome: Outcome | None) -> list[str]:
    """Where its topics are, and how it ended."""
    topics = wiring.topics.name(Topic.EPISODES).removesuffix(Topic.EPISODES)
    lines = [f"kafka {wiring.endpoints.bootstrap_servers}, topics {topics}*"]
    return lines + ([f"ended: {outcome.kind}", *(f"  {line}" for line in outcome.why.splitlines())] if outcome else [])


def _asked_run(run: str | None, runs_dir: Path) -> Wiring:
    """Raises typer.Exit where there is none, with those that there are."""
    try:
        return find_run(run, runs_dir)
    except ConfigurationError as error:
        known = ", ".join(sorted(mark.parent.name for mark in runs_dir.glob(f"*/{MARK}"))) or "none"
        echo(f"tracegrad: {error}; runs in {runs_dir}: {known}", is_error=True)
        raise typer.Exit(NO_RUN_EXIT_STATUS) from error


def _look_at(wiring: Wiring, state: RunState) -> tuple[int | None, int]:
    """Folds what a live run tells: its lag, and dead letters; without a broker what there was before it left."""
    lag, num_dead = None, 0
    try:
        log, topics = reachable_log(wiring), wiring.topics
        # What an earlier start of the run told lies there too, of processes that are gone.
        started_ms = int(1000 * wiring.run_dir.endpoints_file.stat().st_mtime)
        fold_processes(log, topics, state, since_ms=started_ms)
        lag = stream_lag(log, topics)
        fold_present(log, topics, state, (*RESULTS_TOPICS, Topic.WEIGHT_ACKS))
        if state.newest_step is None or not state.newest_step.version:
            fold_present(log, topics, state, [Topic.EPISODES])  # what attempts came to, while nothing is learned
        num_dead = sum(kept.end - kept.begin for kept in log.offsets(topics.name(Topic.DEAD_LETTERS)).values())
    except TracegradError as error:
        echo(f"tracegrad: {error}", is_error=True)
    return lag, num_dead


def _screen(wiring: Wiring, state: RunState, results: Results | None, now_ms: int, *, is_short: bool) -> list[str]:
    """Where the run stands, and its processes; `is_short`: in lines that fit the terminal."""
    width = shutil.get_terminal_size().columns - 3 if is_short else 1_000
    is_ascii = not (sys.stdout.encoding or "").lower().startswith("utf")
    lines: list[str] = []
    if results is not None and (results.steps or results.held_out):
        steps, served = wiring.settings.trainer.steps, {ack.engine_id: ack.version for ack in state.serving}
        lines += glance_lines(results, steps=steps, served=served, width=width, is_ascii=is_ascii)
    return [*lines, *process_lines(state, now_ms, width if is_short else None)]


def tail(
    topic: Annotated[str, typer.Argument(help="A topic of `topics list`, such as episodes or llm_calls.")],
    from_: Annotated[
        str,
        typer.Option("--from", help="Where to start: beginning, end, or -N for the last N (with -f, N a partition)."),
    ] = "-10",
    count: Annotated[int | None, typer.Option("-n", min=0, help="Stop after this many records.")] = None,
    is_following: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records, until Ctrl-C.")] = False,
    as_json: JsonFlag = False,
    run: RunOption = None,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Print the records of a topic, decoded.

    Example: tracegrad tail episodes --from beginning -n 5
    """
    from tracegrad.consumers.views.tail import as_json as json_of
    from tracegrad.consumers.views.tail import as_text

    if topic not in list(Topic):
        raise ConfigurationError(f"no topic {topic!r}; {nearest(topic, list(Topic))}")
    chosen = Topic(topic)
    has_any = False
    with answering(find_run(run, runs_dir)) as wiring:
        log, ring, name = wiring.kafka(), wiring.ring, wiring.topics.name(chosen)
        with closing(_records(log, name, from_, must_wait=is_following or from_ == "end")) as records:
            for record in islice(records, count):
                has_any = True
                refusal = ring.refusal(chosen, record)
                # Also what rooms leave out is shown, and said to be that.
                if as_json:
                    echo(json.dumps(json_of(chosen, record) | ({"left_out": refusal} if refusal else {})))
                else:
                    echo(as_text(chosen, record) + (f" [left out: {refusal}]" if refusal else ""))
    if not has_any and count != 0:
        echo(f"tracegrad: {topic} of run {wiring.record.name} holds nothing from {from_} on", is_error=True)


def _starts(log: Log, name: str, from_: str) -> dict[TopicPartition, int]:
    kept = {TopicPartition(name, partition): offsets for partition, offsets in log.offsets(name).items()}
    if from_ == "beginning":
        return {where: offsets.begin for where, offsets in kept.items()}
    if from_ == "end":
        return {where: offsets.end for where, offsets in kept.items()}
    try:
        back = -int(from_)
    except ValueError:
        back = -1
    if back < 0:
        raise ConfigurationError(f"--from {from_}: expected beginning, end, or -N")
    return {where: max(offsets.begin, offsets.end - back) for where, offsets in kept.items()}


def _records(log: Log, name: str, from_: str, *, must_wait: bool) -> Generator[Record, None, None]:
    starts = _starts(log, name, from_)
    if not must_wait:
        records = sorted(read_to_end(log, name, starts=starts), key=lambda record: record.timestamp_ms)
        # So many were read of each partition.
        yield from records if from_ == "beginning" else records[int(from_) or len(records) :]
        return
    with closing(follow(log, [name], starts=starts, may_skip=True, poll_s=0.5)) as chunks:
        for chunk in chunks:
            yield from chunk.records


def audit(
    run: RunArgument = None,
    runs_dir: RunsDirOption = RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Check that every call, episode, group and piece of feedback is accounted for, and name what is missing.

    It reads the topics. Exits with 1 when something is missing.

    Example: tracegrad audit mine
    """
    from ..run.report import account, report_lines

    wiring = find_run(run, runs_dir)
    if (made := wiring.run_dir.replayed) is not None:
        raise ConfigurationError(
            f"expected a run with raw records, got {wiring.record.name}, which replays {made.source}: audit that one, "
            f"`tracegrad audit {made.source}`; `tracegrad replay` with --dry-run=full compares what rules "
            "make of it"
        )
    is_live = is_running(wiring.run_dir)
    with answering(wiring) as opened:
        report = account(opened, is_live=is_live)
    if as_json:
        echo(msgspec.json.encode(report).decode())
    else:
        echo("\n".join(report_lines(report)))
    raise typer.Exit(0 if report.is_complete else 1)
