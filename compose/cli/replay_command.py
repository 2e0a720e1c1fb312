"""Use history: `replay`, a run's past as another run; by another grader it is called `regrade`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.where import Term
from tracegrad.trainer.history.config import Mode

from ..history.request import DryRun, ReplayRequest, code_digest, known_source
from ..kafka.client_settings import KafkaConfig
from ..printable_log import LogFormat
from ..run.load import load_over
from ..run.run_dir import RunDir
from ..run.session import INTERRUPTED
from ..run.settings import RunSettings
from ..run.show import Show, choose_show
from .common import RUNS, JsonFlag, LogFormatOption, RunsDirOption, find_run, load_settings, log_as
from .run import Set, set_flags

if TYPE_CHECKING:
    from ..history.foreign import ForeignFiles, ForeignTopics

_RUN = "run:"
_FOREIGN = ("topic:", "files:")
"""Spans that no gateway of ours has seen."""
_ASKED_NOTHING = ("agent", "tasks")
"""Of a past nobody is asked again."""
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
Into = Annotated[str, typer.Option("--into", help="Name of the new run.")]
File = Annotated[
    Path | None, typer.Argument(help="TOML file with the new run's settings; without it the source's own.")
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        help="Where to begin: run:NAME (all of a run), topic:NAME (a topic of spans on your cluster), files:PATH "
        "(exported spans, or calls), earliest, an ISO 8601 time, or PT2H (two hours ago).",
    ),
]
To = Annotated[str | None, typer.Option("--to", help="Where to end, in the same form.")]
Source = Annotated[
    Path | None, typer.Option("--source-dir", help="Folder of the source run; without it the newest run.")
]
Where = Annotated[
    str | None, typer.Option("--where", help="Only groups with these facts, such as 'service=shop agent=planner'.")
]
ModeOption = Annotated[
    Mode | None, typer.Option("--mode", help="Train on it, by this mode; without one it is only folded.")
]
Reclose = Annotated[
    bool, typer.Option("--reclose", help="Assemble episodes anew, with late records, not as the source did.")
]
GraderOption = Annotated[
    str | None, typer.Option("--grader", help="Grade anew by file.py:function, called as grade(task, output, attempt).")
]
Cluster = Annotated[
    str | None, typer.Option("--bootstrap-servers", help="host:port,... of the cluster that --from topic:NAME reads.")
]
Since = Annotated[str | None, typer.Option("--since", help="Of a topic: only what was written then or later.")]
RewardsOption = Annotated[
    Path | None,
    typer.Option(
        "--rewards",
        help="Of topics and files from elsewhere: rewards (JSON lines, CSV) by response_id, span_id, trace_id or "
        "conversation.",
    ),
]
TasksOption = Annotated[
    Path | None,
    typer.Option(
        "--tasks", help="Of topics and files from elsewhere: their tasks, {id, input, expected} a line, for the grader."
    ),
]
DryRunOption = Annotated[
    DryRun | None,
    typer.Option(
        "--dry-run",
        help="Write nothing: count records, or what topic: and files: tell; --dry-run=full folds them too, and "
        "compares.",
    ),
]


REGRADE = """Make a new run of an earlier run's records, graded by another grader: `replay` with --grader.

Example: tracegrad regrade --grader strict.py:grade --from run:mine --into mine-strict --mode offline
"""


class HistoryCommand(TyperCommand):
    """`replay` or `regrade`: `--dry-run` may stand without a value, and then counts; `regrade` wants a grader, and has
    not what does not go with one."""

    def __init__(self, name: str, *, params: list[Any], **settings: Any) -> None:
        if name == "regrade":
            params = [one for one in params if one.name not in ("file", "reclose")]
            for one in params:
                one.required = one.required or one.name == "grader"
        super().__init__(name, params=params, **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--dry-run=count" if arg == "--dry-run" else arg for arg in args])


def replay(
    into: Into,
    file: File = None,
    from_: From = "earliest",
    to: To = None,
    where: Where = None,
    source_dir: Source = None,
    set_: Set = None,
    grader: GraderOption = None,
    mode: ModeOption = None,
    reclose: Reclose = False,
    dry_run: DryRunOption = None,
    bootstrap_servers: Cluster = None,
    since: Since = None,
    rewards: RewardsOption = None,
    tasks: TasksOption = None,
    as_json: JsonFlag = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Make a new run of an earlier run's records, under the same rules or others, and train on it with --mode.

    The source is only read. The same command goes on with a replay that was stopped, or, with --mode added, trains on
    one that was only folded. With --grader, its rewards replace the earlier grader's; what people said stays.

    Example: tracegrad replay --from run:mine --into mine-no-air --set air.enabled=false
    """
    from ..history.replay import history_settings, replayed_settings, run_replay

    log_as(log_format, into, "replay")
    with closing(choose_show(as_json=as_json)) as show:
        flags = {"run": into, **set_flags(set_ or [])}
        elsewhere = {"--bootstrap-servers": bootstrap_servers, "--since": since}
        if from_.startswith(_FOREIGN):
            _check_left_out(from_, {"--to": to, "--where": where, "--source-dir": source_dir})
            asked, reclose = _foreign(from_, elsewhere, file, flags), True
            _take_census(asked, show, dry_run)
            rating = {"history.rewards": rewards, "history.tasks": tasks, "reward.grader": grader}
            # What cannot work fails here, before files are imported.
            settings = history_settings(_settings_of(RunSettings(run=into), file, flags | _texts(rating), None), mode)
            meant = _of_foreign(from_, asked, into, runs_dir, show)
        else:
            _check_left_out(from_, {**elsewhere, "--rewards": rewards, "--tasks": tasks})
            meant = _of_run(from_, to, source_dir, runs_dir, into, where)
            settings = _settings_of(RunDir(meant.source).settings, file, flags, grader, reclose=reclose)
        code = code_digest(settings.reward.grader) if grader and settings.reward and settings.reward.grader else ""
        asked_for = {"where": _terms(where, mode), "dry_run": dry_run, "mode": mode, "reclose": reclose, "grader": code}
        settings = replayed_settings(RunDir(meant.source), settings, mode)
        raise typer.Exit(run_replay(msgspec.structs.replace(meant, **asked_for), settings, runs_dir / into, show))


def _check_left_out(from_: str, given: Mapping[str, object]) -> None:
    """Raises ConfigurationError for what does not go with this source."""
    if named := [flag for flag, value in given.items() if value is not None]:
        raise ConfigurationError(f"--from {from_}: {', '.join(named)} does not go with it; leave that out")


def _texts(flags: Mapping[str, object]) -> dict[str, str]:
    """Those that are given, as --set has them."""
    return {name: str(value) for name, value in flags.items() if value is not None}


def _foreign(
    from_: str, cluster: Mapping[str, str | None], file: Path | None, flags: dict[str, Any]
) -> ForeignFiles | ForeignTopics:
    """Files, or topics of somebody's, where FILE says how to reach the cluster if that takes more than an address."""
    from ..history.foreign import FILES, ForeignFiles, ForeignTopics

    if from_.startswith(FILES):
        _check_left_out(from_, cluster)
        return ForeignFiles(from_.removeprefix(FILES))
    kafka = load_settings(file, flags, for_training=False).kafka if file is not None else KafkaConfig()
    servers, since = cluster.values()
    kafka = msgspec.structs.replace(kafka, bootstrap_servers=servers or kafka.bootstrap_servers)
    return ForeignTopics.named(from_, kafka, moment_ms(since, "--since", datetime.now(UTC)) if since else None)


def _take_census(asked: ForeignFiles | ForeignTopics, show: Show, dry_run: DryRun | None) -> None:
    """Raises typer.Exit behind a dry run."""
    from ..history.census import take_census

    if dry_run is not None:
        take_census(asked.requests(show.say), show, is_full=dry_run == "full")
        raise typer.Exit


def _of_foreign(
    from_: str, asked: ForeignFiles | ForeignTopics, into: str, runs_dir: Path, show: Show
) -> ReplayRequest:
    """Raises typer.Exit where a signal ended the making of the source."""
    source = asked.source(into, runs_dir, show)
    if source is None:
        raise typer.Exit(INTERRUPTED)
    return ReplayRequest(source=source.path, asked=shlex.join(["--from", from_]))


def _terms(where: str | None, mode: Mode | None) -> tuple[Term, ...]:
    from tracegrad.consumers.history.selection import terms_of

    return terms_of(where, may_see_outcome=mode == "filter") if where else ()


def _settings_of(
    source: RunSettings, file: Path | None, flags: dict[str, Any], grader: str | None, *, reclose: bool = False
) -> RunSettings:
    """The new run's. Raises ConfigurationError."""
    if grader is not None and reclose:
        raise ConfigurationError("--grader is for recorded episodes, --reclose makes others; leave one of them out")
    if grader is None and file is None:
        return load_over(source, flags, unused=(*_ASKED_NOTHING, "reward"))
    if grader is None:
        return load_settings(file, flags, for_training=False)
    if file is not None:
        raise ConfigurationError(f"--grader: expected the source's own settings, got {file}; name single keys by --set")
    if "reward.grader" in flags:
        raise ConfigurationError("--grader names the grader, and so does --set reward.grader; leave one of them out")
    # Names that the source's grader had to give are not asked of another.
    flags = {"reward.names": '["reward"]', **flags, "reward.grader": grader}
    return load_over(source, flags, unused=_ASKED_NOTHING)


def _of_run(
    from_: str, to: str | None, source_dir: Path | None, runs_dir: Path, into: str, where: str | None
) -> ReplayRequest:
    """Of which run, and which part of its past; `into` is the new run's name. Raises ConfigurationError."""
    named = from_.removeprefix(_RUN) if from_.startswith(_RUN) else None
    begin = "earliest" if named is not None else from_
    if named is not None and source_dir is not None:
        raise ConfigurationError(f"--from {from_} names the source, and so does --source-dir; leave one of them out")
    if named is None and source_dir is None:
        source_dir = known_source(runs_dir / into)  # by now the newest run is the replay itself
    asked = ["--from", begin, *(["--to", to] if to else []), *(["--where", where] if where else [])]
    now = datetime.now(UTC)
    begin_ms = moment_ms(begin, "--from", now, "run:NAME, earliest, ") if begin != "earliest" else None
    end_ms = moment_ms(to, "--to", now) if to else None
    check_window(begin_ms, end_ms)
    return ReplayRequest(
        source=find_run(named or (str(source_dir) if source_dir else None), runs_dir).run_dir.path,
        asked=shlex.join(asked),
        begin_ms=begin_ms,
        end_ms=end_ms,
    )


def check_window(begin_ms: int | None, end_ms: int | None) -> None:
    """Raises ConfigurationError where nothing can lie between."""
    if begin_ms is not None and end_ms is not None and begin_ms >= end_ms:
        raise ConfigurationError("--from, --to: expected --to to be later than --from, got none; exchange them")


def moment_ms(text: str, flag: str, now: datetime, others: str = "") -> int:
    """A time, or how long before now, in milliseconds since the epoch. Raises ConfigurationError: neither, or to
    come.

    Args:
        others: what the flag takes besides, in words.
    """
    found = _DURATION.fullmatch(text)
    try:
        if found and any(found.groups()):
            days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
            at = now - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        else:
            at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.astimezone()
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{flag}: expected {others}a time such as 2026-11-24T09:00:00+00:00, or a duration before now such as "
            f"PT2H, got {text!r}"
        ) from None
    if at > now:
        raise ConfigurationError(
            f"{flag}: expected a time that has been, got {at.isoformat()}; now is {now.isoformat()}"
        )
    return int(1000 * at.timestamp())
