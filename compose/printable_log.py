"""Log lines as a terminal may show them: those of a process and those of a command.

In: a level and a format. Out: the root logger's handler. Invariant: no line, nor a traceback in it, holds a control
character of others. Failure: none.
"""

from __future__ import annotations

import logging
import sys

from tracegrad.schemas.text import printable

__all__ = ["log_to_stderr"]


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr(level: int, form: str) -> None:
    """Without it Python prints warnings as they come. Nothing where the root logger has handlers."""
    logging.basicConfig(level=level, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Formatter(form))
