"""The audit of a run while it runs, when somebody asks for it: every call, episode, group and piece of feedback counted
anew from the topics.

    /system?recount=1      the first one since the page started; the link on it asks for the next

In: what counts, which reads all topics once. Out: how the last one went. Invariants: one at a time, in a thread of its
own, and only when asked: to look again at a URL whose number was counted starts none; a run of more records than fit
in a page's memory is left to the command. Failure: the reason, for people.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tracegrad.schemas.errors import TracegradError

from .account import Report

logger = logging.getLogger(__name__)

__all__ = ["MAX_RECORDS", "Recount", "Recounted"]

MAX_RECORDS = 1_000_000
"""Of all topics: a count of them takes minutes, and holds some 500 bytes of each."""


class Recounted(NamedTuple):
    """How it stands."""

    num: int = 0
    """Of the last one that began."""
    is_running: bool = False
    report: Report | None = None
    """Of the last one that ended."""
    at_ms: int = 0
    """When that began, unix ms."""
    took_s: float = 0.0
    trouble: str = ""
    """Why the last one found nothing."""


class Recount:
    """Of one page."""

    def __init__(self, count: Callable[[], Report], tell: Callable[[], None]) -> None:
        """
        Args:
            count: blocks while it reads. Raises TracegradError.
            tell: is called when there is something new.
        """
        self._count, self._tell = count, tell
        self._lock = threading.Lock()
        self.state = Recounted()

    def ask(self, number: int, num_records: int) -> None:
        """Begins the count of this number, unless it has begun. Does not block."""
        with self._lock:
            if number <= self.state.num or self.state.is_running:
                return
            if num_records > MAX_RECORDS:
                trouble = f"the topics hold {num_records:,} records, more than a page counts: use the command"
                self.state = self.state._replace(trouble=trouble)
                return
            self.state = self.state._replace(num=number, is_running=True, trouble="")
        threading.Thread(target=self._work, name="page-recount", daemon=True).start()

    def _work(self) -> None:
        at_ms, began = time.time_ns() // 1_000_000, time.monotonic()
        report, trouble = self.state.report, ""
        try:
            report = self._count()
        except Exception as error:  # what a thread raises is told to nobody but by this line
            at_ms, trouble = self.state.at_ms, str(error) or repr(error)
            if not isinstance(error, TracegradError):
                logger.exception("page: the recount failed")
        finally:
            took_s = time.monotonic() - began
            self.state = Recounted(self.state.num, False, report, at_ms, took_s, trouble)
            self._tell()
