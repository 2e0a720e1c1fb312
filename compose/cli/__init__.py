"""The command line, one file per group of commands.

In: argv and the environment. Out: effects, words for people, an exit status: 0 done, 1 failed, 78 settings that
cannot work, 130 stopped by Ctrl-C. Invariant: an error that tracegrad raises on purpose is one clear message,
never a traceback; whatever is printed, tracebacks and warnings too, holds no control character of others.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import traceback
from pathlib import Path

import typer

from tracegrad.schemas.errors import BUG_EXIT_STATUS, FATAL_EXIT_STATUS, FatalError, TracegradError

from ..loopback import without_proxy
from ..printable_log import log_to_stderr
from ..run.serve import lacking
from ..run.session import INTERRUPTED
from . import air, find, look, run, runs, topics
from .chat import chat
from .common import echo
from .page_command import page
from .replay_command import REGRADE, HistoryCommand, replay

__all__ = ["app", "main"]

app = typer.Typer(
    name="tracegrad",
    help="Train LLM agents from their traces: spans and model calls go onto Kafka, new model weights come out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
GONE = {
    "--agent": "an agent whose files have moved is found behind a link at their old place",
    "--export": "open the episode in `tracegrad page`, and save or print it from the browser",
    "--form": "plain lines serve `docker run --env-file` and .env files, --shell prints export lines",
    "--from-file": "--from takes a time, from which on a history is read",
    "--kafka": "--source-dir names the folder of the source run",
    "--only": "a replay without --mode is folded alone, and by the same command with --mode trained on later",
    "--rate": "a quota of your Kafka bounds what a client reads",
    "--run": "name the run without it, as in `tracegrad status NAME`",
    "recipes": "docs/algorithms.md lists them",
    "--run-dir": "name the run's folder where its name would stand, by --run or as an argument",
}
"""Options and commands of earlier releases -> what takes their place."""
for panel, commands in {
    "Run": (run.demo, run.train, run.check, run.up, run.env, run.serve),
    "Look": (page, look.status, chat, look.tail, find.episodes, find.lineage, look.audit),
}.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
for name, text in (("replay", None), ("regrade", REGRADE)):
    app.command(name, help=text, rich_help_panel="History", cls=HistoryCommand)(replay)
app.add_typer(runs.app, name="runs", rich_help_panel="Look")
app.add_typer(air.app, name="air", rich_help_panel="Look")
app.add_typer(topics.app, name="topics", rich_help_panel="Look")


def _bug_text(error: Exception) -> str:
    """One line on a fault of ours, and the file that has the rest; with TRACEGRAD_DEBUG=1 all of it."""
    whole = "".join(traceback.format_exception(error))
    if os.environ.get("TRACEGRAD_DEBUG") == "1":
        return whole
    at = traceback.extract_tb(error.__traceback__)[-1]
    handle, file = tempfile.mkstemp(prefix="tracegrad-", suffix=".traceback", text=True)
    with open(handle, "w", encoding="utf-8") as out:
        out.write(whole)
    what = f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {' '.join(str(error).split())[:300]}"
    return f"tracegrad: a bug of ours: {what}; please report it with {file} (TRACEGRAD_DEBUG=1 prints that)"


def main() -> None:
    """The console script. Its exit statuses: docs/running.md."""
    os.environ.update(without_proxy(os.environ))
    log_to_stderr(logging.WARNING, "%(message)s")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except TracegradError as error:
        echo(f"tracegrad: {error}", is_error=True)
        sys.exit(FATAL_EXIT_STATUS if isinstance(error, FatalError) else 1)
    except ModuleNotFoundError as error:
        echo(f"tracegrad: {lacking(error, 'this command', 'cli')}", is_error=True)
        sys.exit(FATAL_EXIT_STATUS)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left (`| head`); what is still buffered has nowhere to go.
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:  # the one outermost handler
        show, option = getattr(error, "show", None), getattr(error, "option_name", None) or "".join(sys.argv[1:2])
        if option in GONE:
            echo(f"tracegrad: {option}: it is gone: {GONE[option]}", is_error=True)
            sys.exit(FATAL_EXIT_STATUS)
        if show is None:
            echo(_bug_text(error), is_error=True)
            sys.exit(BUG_EXIT_STATUS)
        # A usage error of the command line library, whose class its vendored parser owns.
        show()
        sys.exit(getattr(error, "exit_code", 2))
