"""How a run looks: a live line under a table on a terminal, one plain line per step elsewhere, or JSON lines.

In: a view's events and sentences. Out: text on stdout (sentences of the JSON form on stderr, so that stdout
stays machine-readable). Invariant: safe to call from the watcher's and the main thread.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, TextIO

import msgspec
from rich.console import Console
from rich.markup import escape

from tracegrad.consumers.views.terminal import Event, StepLine
from tracegrad.schemas.text import printable

__all__ = ["JsonShow", "RichShow", "Show", "choose_show"]

_HEADER = "  step  version  reward  tools ok  staleness    lag   open    s"


def _number(value: float | None, width: int, digits: int = 2) -> str:
    return f"{'-' if value is None else format(value, f'.{digits}f'):>{width}}"


def step_text(line: StepLine) -> str:
    """One aligned line."""
    lag = "-" if line.lag is None else str(line.lag)
    text = (
        f"{line.step:6d} {line.version:8d} {_number(line.reward, 7, 3)} {_number(line.tool_success, 9)} "
        f"{_number(line.staleness, 10)} {lag:>6} {line.open_episodes:6d} {line.seconds:5.1f}"
    )
    return f"{text}  no update: {line.skipped}" if line.skipped else text


def _print(out: TextIO, text: str) -> None:
    """A disk that is full for a while ends no run: the line comes with the next ones, if the stream's buffer holds it.

    BrokenPipeError: nobody reads any more.
    """
    try:
        out.write(printable(text) + "\n")
        out.flush()
    except BrokenPipeError:
        raise
    except OSError:
        pass


class Show:
    """What prints. In itself one plain line per step; for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._lock = threading.Lock()
        self._has_header = False

    def event(self, event: Event) -> None:
        """One thing that happened."""
        if event.step is None:
            self.say(event.text)
            return
        if not self._has_header:
            self._has_header = True
            self.say(_HEADER)
        self.say(step_text(event.step))

    def say(self, text: str) -> None:
        """A sentence for people."""
        with self._lock:
            _print(self._out, text)

    def result(self, name: str, fields: dict[str, Any], lines: list[str]) -> None:
        """A part of the report: fields for machines, lines for people."""
        for line in lines:
            self.say(line)

    def progress(self, name: str, fields: dict[str, Any], text: str) -> None:
        """How far long work is; each time anew."""
        self.result(name, fields, [text])

    def close(self) -> None:
        """Leaves the terminal as it was."""


class RichShow(Show):
    """On a terminal: the same lines in colour, and a spinner that says what is awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False)
        self._status = self._console.status("starting")
        self._status.start()

    def event(self, event: Event) -> None:
        super().event(event)
        if event.step is not None:
            self._status.update(
                f"step {event.step.step + 1} under way, {event.step.open_episodes} episodes open, "
                f"{event.step.waiting_groups} groups wait"
            )

    def say(self, text: str) -> None:
        style = "bold" if text == _HEADER else None
        self._console.print(escape(printable(text)), style=style, soft_wrap=True)

    def progress(self, name: str, fields: dict[str, Any], text: str) -> None:
        self._status.update(text)

    def close(self) -> None:
        self._status.stop()


class JsonShow(Show):
    """JSON lines on stdout, `{"kind": ...}`; sentences on stderr."""

    def event(self, event: Event) -> None:
        fields: dict[str, Any] = {} if event.step is not None else {"text": event.text}
        for told in (event.step, event.held_out, event.traffic):
            if told is not None:
                fields |= msgspec.to_builtins(told)
        self.result(event.kind, fields, [])

    def say(self, text: str) -> None:
        _print(sys.stderr, text)

    def result(self, name: str, fields: dict[str, Any], lines: list[str]) -> None:
        super().say(json.dumps({"kind": name, **fields}))


def choose_show(*, as_json: bool) -> Show:
    """By flag, and by whether anybody watches."""
    if as_json:
        return JsonShow()
    return RichShow() if sys.stdout.isatty() else Show()
