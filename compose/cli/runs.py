"""`runs`: what runs lie here and how they differ, and the end of one that nobody needs.

In: folders of runs; no broker is asked. Out: a line each. Invariant: what is removed is no live run's, and no other run
rests on it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.topics import REGISTRY

from ..files import MARK
from ..history.run_broker import is_running
from ..run.run_dir import RunDir
from .common import RUNS, JsonFlag, RunsDirOption, echo

_LEARNING = ("agent", "tasks", "reward", "policy", "trainer", "algorithm", "credit", "air", "pace", "seed")
"""Sections that decide what is learned; none of them holds a password."""
_HEADER = ("run", "state", "held-out", "steps", "seconds", "MB", "unlike the newest")
_ROW = "{:<24} {:<12} {:<26} {:>6} {:>9} {:>9}  {}"

app = typer.Typer(help="List the runs of a folder, or remove one.", no_args_is_help=True)


def state_of(folder: RunDir) -> str:
    """`running`, how it ended, or `not running` where nobody was left to say."""
    if is_running(folder):
        return "running"
    return str(folder.outcome.kind) if folder.outcome is not None else "not running"


@app.command("list")
def list_runs(runs_dir: RunsDirOption = RUNS, as_json: JsonFlag = False) -> None:
    """List the runs, the newest first: state, held-out score, steps, duration, size, and the settings that decide what
    is learned in which a run differs from the newest.

    Example: tracegrad runs list
    """
    told = sorted(map(_told, runs_dir.glob(f"*/{MARK}")), key=lambda one: one[0], reverse=True)
    newest = set(told[0][2]) if told else set()
    if not as_json:
        echo(_ROW.format(*_HEADER) if told else f"no run under {runs_dir}")
    for _, row, learning in told:
        row["differs"] |= dict(sorted(set(learning) - newest))
        score = row["held_out"]
        held = "-" if score is None or score.mean is None else f"{score.mean:.3f} ({score.low:.3f} to {score.high:.3f})"
        words = " ".join(f"{key}={value}" for key, value in row["differs"].items())
        shown = map(str, (row | {"held_out": held, "differs": words}).values())
        echo(msgspec.json.encode(row).decode() if as_json else _ROW.format(*shown).rstrip())


@app.command("rm")
def remove(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name or folder.")],
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Remove a run's folder: records, weights, results. Refuses a live run, and one that another rests on.

    Example: tracegrad runs rm mine
    """
    folder = RunDir.open(Path(run) if (Path(run) / MARK).is_file() else runs_dir / run)
    settings = folder.settings if folder.config.exists() else None
    with folder.lock():
        if users := [it.name for it in folder.beside() if it != folder.path and _rests_on(RunDir(it), folder)]:
            raise ConfigurationError(f"runs {', '.join(users)} rest on {folder.path}; remove them first")
        if not is_sure:
            typer.confirm(f"remove {folder.path}, {_size(folder.path) / 1e6:.0f} MB, for ever?", abort=True)
        shutil.rmtree(folder.path)
    if settings is not None and (servers := settings.kafka.bootstrap_servers) is not None:
        own = [settings.topics.name(spec.topic) for spec in REGISTRY if not spec.raw]
        echo(f"its records are still on {servers}; to delete those that are its alone:")
        echo(f"  kafka-topics.sh --bootstrap-server {servers} --delete --topic '{'|'.join(own)}'")


def _told(mark: Path) -> tuple[str, dict[str, Any], list[tuple[str, str]]]:
    """When a run was made, what is told of it, and what decides what it learns; of a damaged one the fault."""
    from ..run.report import read_results

    folder, differs = RunDir(mark.parent), dict[str, str]()
    results = read_results(folder)
    try:
        created, state, learning = folder.record.created_at, state_of(folder), [*_learning(folder)]
    except ConfigurationError as error:
        created, state, learning, differs = "", "damaged", [], {"error": str(error)}
    row = {
        "run": folder.path.name,
        "state": state,
        "held_out": results and (results.best.score if results.best else results.after or results.before),
        "steps": results.steps if results else 0,
        "seconds": round(results.seconds.get("total", 0.0)) if results else 0,
        "megabytes": round(_size(folder.path) / 1e6),
        "differs": differs,
    }
    return created, row, learning


def _learning(folder: RunDir) -> Iterator[tuple[str, str]]:
    """Key and value, as text, of what decides what is learned."""
    told = msgspec.to_builtins(folder.settings) if folder.config.exists() else {}
    for section in _LEARNING:
        held: Any = told.get(section)
        for key, value in held.items() if isinstance(held, dict) else [("", held)]:
            if key not in ("env", "pass_env"):
                yield f"{section}.{key}".rstrip("."), msgspec.json.encode(value).decode()


def _size(folder: Path) -> int:
    """In bytes, of what lies there once; a live run's files may go meanwhile."""
    sizes: dict[int, int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                file = os.lstat(os.path.join(place, name))
                sizes[file.st_ino] = file.st_size
    return sum(sizes.values())


def _rests_on(other: RunDir, folder: RunDir) -> bool:
    """Whether it replays the run, selects its episodes, or starts from its weights."""
    if not other.config.exists():
        return False
    replayed, settings = other.replayed, other.settings
    named = [replayed.source if replayed else "", *settings.select.runs, settings.policy.model or ""]
    return any(Path(one).resolve().is_relative_to(folder.path) for one in named if one)
