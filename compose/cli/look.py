"""Look at a run: `status`, `tail`, `audit`. They read its folder and its topics, and change neither."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import closing
from itertools import islice
from typing import Annotated

import msgspec
import typer

from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.terminal import process_lines
from tracegrad.consumers.views.watch import fold_processes, stream_lag
from tracegrad.schemas.errors import ConfigurationError, TracegradError
from tracegrad.schemas.log.follow import follow, read_to_end
from tracegrad.schemas.log.protocol import Log, Record, TopicPartition
from tracegrad.schemas.section import nearest
from tracegrad.schemas.topics import Topic

from .common import RUNS, JsonFlag, RunDirOption, RunOption, RunsDirOption, echo, find_run, reachable_log

__all__ = ["audit", "status", "tail"]


def status(
    run: RunOption = None, run_dir: RunDirOption = None, runs_dir: RunsDirOption = RUNS, as_json: JsonFlag = False
) -> None:
    """Show the processes of a run, how far it is, and what waits; of one that ended, why.

    Exit status 1 when nothing runs.

    Example: tracegrad status --json
    """
    wiring = find_run(run, run_dir, runs_dir)
    folder = wiring.run_dir
    is_running = folder.is_locked()
    outcome = None if is_running else folder.outcome
    state = RunState(wiring.topics, wiring.record.hash, wiring.settings.policy.name)
    lag: int | None = None
    if is_running:
        try:
            log = reachable_log(wiring)
            # What an earlier start of the run told lies there too, of processes that are gone.
            started_ms = int(1000 * folder.endpoints_file.stat().st_mtime)
            fold_processes(log, wiring.topics, state, since_ms=started_ms)
            lag = stream_lag(log, wiring.topics)
        except TracegradError as error:
            echo(f"tracegrad: {error}", is_error=True)
    if as_json:
        fields = {
            "run": wiring.record.name,
            "folder": str(folder.path),
            "is_running": is_running,
            "outcome": msgspec.to_builtins(outcome),
            "lag": lag,
            "endpoints": msgspec.to_builtins(wiring.endpoints),
            "processes": [msgspec.to_builtins(told) for told in state.supervised.values()],
            "reports": [msgspec.to_builtins(report) for report in state.reports.values()],
        }
        echo(json.dumps(fields, indent=2))
    else:
        echo(f"run {wiring.record.name} ({'running' if is_running else 'not running'}) in {folder.path}")
        topics = wiring.topics.name(Topic.EPISODES).removesuffix(Topic.EPISODES)
        echo(f"  kafka {wiring.endpoints.bootstrap_servers}, topics {topics}*")
        if outcome is not None:
            echo("\n".join([f"  ended: {outcome.kind}", *(f"    {line}" for line in outcome.why.splitlines())]))
        for line in process_lines(state, int(time.time() * 1000)):
            echo("  " + line)
        if lag is not None:
            echo(f"  {lag} records wait or belong to what is still open")
    raise typer.Exit(0 if is_running else 1)


def tail(
    topic: Annotated[str, typer.Argument(help="As in `topics list`, such as episodes or llm_calls.")],
    from_: Annotated[str, typer.Option("--from", help="beginning, end, or -N for the last N records.")] = "-10",
    count: Annotated[int | None, typer.Option("-n", min=0, help="Stop after so many.", show_default=False)] = None,
    is_following: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    as_json: JsonFlag = False,
    run: RunOption = None,
    run_dir: RunDirOption = None,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Show the records of a topic, decoded.

    Example: tracegrad tail episodes --from beginning -n 5
    """
    from tracegrad.consumers.views.tail import as_json as json_of
    from tracegrad.consumers.views.tail import as_text

    if topic not in list(Topic):
        raise ConfigurationError(f"no topic {topic!r}; {nearest(topic, list(Topic))}")
    chosen = Topic(topic)
    wiring = find_run(run, run_dir, runs_dir)
    reachable_log(wiring)
    log, ring = wiring.kafka(), wiring.ring
    with closing(_records(log, wiring.topics.name(chosen), from_, must_wait=is_following or from_ == "end")) as records:
        has_any = False
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
    run: RunOption = None, run_dir: RunDirOption = None, runs_dir: RunsDirOption = RUNS, as_json: JsonFlag = False
) -> None:
    """Recompute from the topics what became of every call, episode, group and piece of feedback; name what
    is missing.

    Exit status 1 when an id is in no term.

    Example: tracegrad audit --run mine
    """
    from ..run.report import account, report_lines

    wiring = find_run(run, run_dir, runs_dir)
    if (made := wiring.run_dir.replayed) is not None:
        raise ConfigurationError(
            f"expected a run with raw records, got {wiring.record.name}, which replays {made.source}: audit that one, "
            f"`tracegrad audit --run-dir {made.source}`; `tracegrad replay` with --dry-run=full compares what rules "
            "make of it"
        )
    reachable_log(wiring)
    report = account(wiring, is_live=wiring.run_dir.is_locked())
    if as_json:
        echo(msgspec.json.encode(report).decode())
    else:
        echo("\n".join(report_lines(report)))
    raise typer.Exit(0 if report.is_complete else 1)
