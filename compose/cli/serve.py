"""`serve`: one process of a run in the foreground, for one's own launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

_PANEL = "Run"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("serve", rich_help_panel=_PANEL)(serve)


def serve(
    name: Annotated[str, typer.Argument(help="otlp, llm, streams, tasks, runner, engine, trainer or weight-sync")],
    run_dir: Annotated[Path, typer.Option("--run-dir", help="The run's folder, made by `up` or `train`.")],
    stage: Annotated[str | None, typer.Option(help="Of streams: normalize, assemble or credit.")] = None,
    ordinal: Annotated[int, typer.Option(min=0, help="Which one of several equal processes, from 0.")] = 0,
) -> None:
    """Run one process of a run in the foreground.

    Example: tracegrad serve streams --stage assemble --ordinal 1 --run-dir runs/mine
    """
    from ..run.serve import serve as serve_process

    raise typer.Exit(serve_process(name, run_dir, stage=stage, ordinal=ordinal))
