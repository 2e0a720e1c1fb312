"""Log lines as a terminal may show them, or as a collector of logs reads them: those of a process and of a command.

    {"at": "2026-05-01T12:00:00.123Z", "level": "INFO", "run": "mine", "process": "llm", "logger": "tracegrad...",
     "message": "...", "episodes": ["7c1f..."]}

In: a level and a format. Out: the root logger's handler. Invariants: no line, nor a traceback in it, holds a control
character of others; of JSON each line is one object, with the ids of the rollouts, attempts and traces that its words
name, warnings and uncaught errors of threads among them. Failure: none.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import sys
import threading
from enum import StrEnum

from tracegrad.schemas.text import printable

LOG_FORMAT = "TRACEGRAD_LOG_FORMAT"
"""The variable by which the processes of a run are told."""
_EPISODE = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{32}|[0-9a-f]{28})(?![0-9a-f])")


class LogFormat(StrEnum):
    """Of the lines on stderr and in runs/NAME/logs/."""

    TEXT = "text"
    JSON = "json"


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _JsonFormatter(logging.Formatter):
    def __init__(self, run: str, process: str) -> None:
        super().__init__("%(message)s")
        self._of = {"run": run, "process": process}

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)  # with its traceback
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"at": at.replace("+00:00", "Z"), "level": record.levelname, **self._of, "logger": record.name}
        line |= {"message": message}
        episodes = [*dict.fromkeys(_EPISODE.findall(message))]
        # ASCII alone: what is escaped controls no terminal.
        return json.dumps(line | ({"episodes": episodes} if episodes else {}))


def log_to_stderr(level: int, form: str, *, run: str = "", process: str = "") -> None:
    """Without it Python prints warnings as they come. Where the root logger has handlers, they get the format.

    Args:
        level: of the root logger.
        form: of a line, unless the environment asks for JSON.
        run: whose lines these are, likewise `process`; for JSON.
    """
    is_json = os.environ.get(LOG_FORMAT) == LogFormat.JSON
    logging.basicConfig(level=level, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_JsonFormatter(run, process) if is_json else _Formatter(form))
    if is_json:  # what Python prints by itself
        logging.captureWarnings(True)
        threading.excepthook = _log_end_of_thread
        sys.excepthook = lambda kind, error, traceback: _log_end("the process", error)


def _log_end_of_thread(of: threading.ExceptHookArgs) -> None:
    if of.exc_type is not SystemExit:  # by which a thread ends itself; Python says nothing of it
        _log_end(f"thread {of.thread and of.thread.name}", of.exc_value)


def _log_end(what: str, error: BaseException | None) -> None:
    logging.getLogger(__name__).critical("the end of %s", what, exc_info=error)
