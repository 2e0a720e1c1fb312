"""`runs`: what runs lie here and how they differ, and the end of one that nobody needs.

In: folders of runs; no broker is asked. Out: a line each. Invariant: what is removed is no live run's, and no other run
rests on it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tracegrad.consumers.views.held_out import HeldOut
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.topics import REGISTRY

from ..files import MARK
from ..history.run_broker import is_running
from ..run.run_dir import RunDir
from .common import RUNS, JsonFlag, RunsDirOption, echo, find_run

_LEARNING = ("agent", "tasks", "reward", "policy", "trainer", "algorithm", "credit", "air", "pace", "seed")
"""Sections that decide what is learned; none of them holds a password."""
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
    from ..run.report import read_results

    found = sorted(map(RunDir, (mark.parent for mark in runs_dir.glob(f"*/{MARK}"))), key=_created, reverse=True)
    rows = [] if as_json else [_ROW.format("run", "state", "held-out", "steps", "seconds", "MB", "unlike the newest")]
    for folder in found:
        results = read_results(folder)
        best = results.best if results else None
        last = results.after or results.before if results else None
        score = best.score if best else last
        seconds = results.seconds.get("total", 0.0) if results else 0.0
        differs = dict(sorted(set(_learning(folder)) - set(_learning(found[0]))))
        told = {
            "run": folder.record.name,
            "state": state_of(folder),
            "held_out": score,
            "steps": results.steps if results else 0,
            "seconds": round(seconds),
            "megabytes": round(_size(folder.path) / 1e6),
            "differs": differs,
        }
        words = " ".join(f"{key}={value}" for key, value in differs.items())
        shown = map(str, (told | {"held_out": _score_text(score), "differs": words}).values())
        rows.append(msgspec.json.encode(told).decode() if as_json else _ROW.format(*shown).rstrip())
    for row in rows if found else [] if as_json else [f"no run under {runs_dir}"]:
        echo(row)


@app.command("rm")
def remove(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name or folder.")],
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Remove a run's folder: records, weights, results. Refuses a live run, and one that another rests on.

    Example: tracegrad runs rm mine
    """
    wiring = find_run(run, runs_dir)
    folder, settings = wiring.run_dir, wiring.settings
    with folder.lock():
        users = [other.name for other in folder.beside() if other != folder.path and _rests_on(RunDir(other), folder)]
        if users:
            raise ConfigurationError(f"runs {', '.join(users)} rest on {folder.path}; remove them first")
        if not is_sure:
            typer.confirm(f"remove {folder.path}, {_size(folder.path) / 1e6:.0f} MB, for ever?", abort=True)
        shutil.rmtree(folder.path)
    if (servers := settings.kafka.bootstrap_servers) is not None:
        own = [wiring.topics.name(spec.topic) for spec in REGISTRY if not spec.raw]
        echo(f"its records are still on {servers}; to delete those that are its alone:")
        echo(f"  kafka-topics.sh --bootstrap-server {servers} --delete --topic '{'|'.join(own)}'")


def _created(folder: RunDir) -> str:
    return folder.record.created_at


def _learning(folder: RunDir) -> Iterator[tuple[str, str]]:
    """Key and value, as text, of what decides what is learned."""
    told = msgspec.to_builtins(folder.settings) if folder.config.exists() else {}
    for section in _LEARNING:
        held: Any = told.get(section)
        for key, value in held.items() if isinstance(held, dict) else [("", held)]:
            if key not in ("env", "pass_env"):
                yield f"{section}.{key}".rstrip("."), msgspec.json.encode(value).decode()


def _size(folder: Path) -> int:
    """In bytes, of what lies there once."""
    files = {stat.st_ino: stat.st_size for path in folder.rglob("*") if (stat := path.lstat()) and not path.is_dir()}
    return sum(files.values())


def _score_text(score: HeldOut | None) -> str:
    if score is None or score.mean is None:
        return "-"
    return f"{score.mean:.3f} ({score.low:.3f} to {score.high:.3f})"


def _rests_on(other: RunDir, folder: RunDir) -> bool:
    """Whether it replays the run, selects its episodes, or starts from its weights."""
    replayed, settings = other.replayed, other.settings
    named = [replayed.source if replayed else "", *settings.select.runs, settings.policy.model or ""]
    return any(Path(one).resolve().is_relative_to(folder.path) for one in named if one)
