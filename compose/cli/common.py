"""What several commands share: which run is meant, and its settings.

In: options. Out: a Wiring, or settings for a start. Failure: ConfigurationError that says what to name.
"""

from __future__ import annotations

import logging
import os
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.section import section_of
from tracegrad.schemas.text import printable

from ..files import MARK
from ..printable_log import LOG_FORMAT, LogFormat, log_to_stderr
from ..run.load import load
from ..run.run_dir import RunDir
from ..run.settings import RunSettings
from ..run.wiring import Wiring

DEFAULT_FILE = Path("tracegrad.toml")
RUNS = Path("runs")


def help_of(path: str) -> str:
    """What a flag says of the key that it sets: the docstring under the section's field."""
    section, _, key = path.rpartition(".")
    record = section_of(typing.get_type_hints(RunSettings)[section]) if section else RunSettings
    assert record is not None
    # A bracket would be markup; who does not give a flag gives no None.
    told = record.docs()[key].replace("[", r"\[")
    return told.replace(". None:", ". Without it").replace("None:", "without it")


RunArgument = Annotated[
    str | None, typer.Argument(metavar="RUN", help="The run's name or folder; without it the newest.")
]
NewRunOption = Annotated[str | None, typer.Option("--run", help=help_of("run"))]
"""Of commands that start a run; of those that look at one:"""
RunOption = Annotated[str | None, typer.Option("--run", help="The run's name or folder; without it the newest.")]
RunsDirOption = Annotated[
    Path, typer.Option("--runs-dir", help="Folder that holds the folders of runs.", envvar="TRACEGRAD_RUNS_DIR")
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option("--log-format", help="Format of logs; json lines name run, process and episodes.", envvar=LOG_FORMAT),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON to stdout; of several records one a line.")]


def echo(text: str, *, is_error: bool = False) -> None:
    """Prints what may hold text of others; every command prints by it."""
    typer.echo(printable(text), err=is_error)


def tell_wait(why: str) -> None:
    """What a command waits for, beside its answer."""
    echo(f"tracegrad: {why}", is_error=True)


def log_as(form: LogFormat, run: str, process: str = "supervisor") -> None:
    """Of this command's lines, and of those of the processes that it starts."""
    os.environ[LOG_FORMAT] = form
    log_to_stderr(logging.WARNING, "%(message)s", run=run, process=process)


def find_run(run: str | None, runs_dir: Path) -> Wiring:
    """The run that is meant: by folder, by name, else the newest."""
    if run is not None:
        return Wiring(RunDir.open(Path(run) if (Path(run) / MARK).is_file() else runs_dir / run))
    found = sorted(runs_dir.glob(f"*/{MARK}"), key=lambda mark: (mark.parent / "config.json").stat().st_mtime)
    if not found:
        raise ConfigurationError(
            f"no run under {runs_dir}; start one with `tracegrad up` or `tracegrad train FILE`, or name its folder"
        )
    return Wiring(RunDir.open(found[-1].parent))


def load_settings(file: Path | None, flags: Mapping[str, Any], *, for_training: bool) -> RunSettings:
    """Settings of a start: the file (./tracegrad.toml when none is named), environment, flags."""
    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
    if file is not None and file.is_dir():
        file = file / DEFAULT_FILE
    # These two are flags', not the file's.
    environ = {name: value for name, value in os.environ.items() if name not in ("TRACEGRAD_RUNS_DIR", LOG_FORMAT)}
    return load(file, environ=environ, flags=flags, for_training=for_training)


@contextmanager
def answering(wiring: Wiring) -> Iterator[Wiring]:
    """The run with a log that answers: of one that has ended the broker is opened for as long."""
    from ..history.run_broker import readable

    with readable(wiring, say=tell_wait) as opened:
        reachable_log(opened)
        yield opened


def reachable_log(wiring: Wiring) -> Log:
    """The run's log, asked one question first, so that a stopped run is said in one sentence."""
    try:
        wiring.kafka().admin.partition_counts()
    except UnavailableError as error:
        raise UnavailableError(
            f"Kafka of run {wiring.record.name} does not answer at {wiring.endpoints.bootstrap_servers}; "
            f"start the run again, or its broker alone: python -m tracegrad.compose.local_kafka.broker --data "
            f"{wiring.run_dir.kafka} --port {wiring.endpoints.bootstrap_servers.rpartition(':')[2]}"
        ) from error
    return wiring.log()
