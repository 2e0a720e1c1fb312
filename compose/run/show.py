"""How a run looks: on a terminal what happens, and below it how far the run is; elsewhere a plain line per step; or
JSON lines.

In: a view's events and sentences. Out: text on stdout (sentences of the JSON form on stderr, so that stdout
stays machine-readable). Invariant: safe to call from the watcher's and the main thread.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import msgspec
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from tracegrad.consumers.views.progress import RunProgress, next_lines, now_line, sampled_text
from tracegrad.consumers.views.terminal import Event, StepLine
from tracegrad.schemas.reasons import reason_text
from tracegrad.schemas.text import printable

from ..printable_log import LOG_FORMAT, LogFormat
from .settings import RunSettings

_logger = logging.getLogger(__name__)
_logger.setLevel(logging.INFO)  # whatever is left out of the others
_HEADER = "  step  version  reward  tools ok  staleness{lag}   open    s"
_LAG_WIDTH = 7
_REFRESH = 4
"""Times a second."""
_NOW = "now"
"""The kind of event that is written over."""


def _number(value: float | None, width: int, digits: int = 2) -> str:
    return f"{'-' if value is None else format(value, f'.{digits}f'):>{width}}"


def header(*, has_lag: bool) -> str:
    """What the columns are."""
    return _HEADER.format(lag=f"{'lag':>{_LAG_WIDTH}}" if has_lag else "")


def step_text(line: StepLine, *, has_lag: bool) -> str:
    """One aligned line."""
    lag = f"{'-' if line.lag is None else line.lag:>{_LAG_WIDTH}}" if has_lag else ""
    text = (
        f"{line.step:6d} {line.version:8d} {_number(line.reward, 7, 3)} {_number(line.tool_success, 9)} "
        f"{_number(line.staleness, 10)}{lag} {line.open_episodes:6d} {line.seconds:5.1f}"
    )
    return f"{text}  no update: {reason_text(line.skipped)}" if line.skipped else text


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

    def __init__(self, out: TextIO | None = None, *, is_verbose: bool = False) -> None:
        """`is_verbose`: with the figures that only who knows the stages can read."""
        self._out = out or sys.stdout
        self._lock = threading.Lock()
        self._has_header = False
        self._is_verbose = is_verbose

    def begin(self, steps: int) -> None:
        """So many steps are to come."""

    def event(self, event: Event) -> None:
        """One thing that happened."""
        if event.kind == _NOW:
            return  # it would be a line each second
        if event.step is None:
            self.say(event.text)
            return
        if not self._has_header:
            self._has_header = True
            self.say(header(has_lag=self._is_verbose))
        self.say(step_text(event.step, has_lag=self._is_verbose))

    def say(self, text: str) -> None:
        """A sentence for people."""
        with self._lock:
            _print(self._out, text)

    def explain(self, text: str) -> None:
        """Sentences that nobody copies."""
        self.say(text)

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
    """On a terminal: what happens in lines, and under them how far the run is, made anew a few times a second. The
    steps' own lines are for who asks for them."""

    def __init__(self, *, is_verbose: bool = False) -> None:
        super().__init__(is_verbose=is_verbose)
        self._console = Console(highlight=False)
        self._is_ascii = not (self._console.encoding or "").lower().startswith("utf")
        self._progress: RunProgress | None = None
        self._begun_s = time.monotonic()
        self._doing = "starting"
        self._live = Live(get_renderable=self._look, console=self._console, refresh_per_second=_REFRESH, transient=True)
        before = sys.stderr
        self._live.start()
        self._warnings = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream is before
        ]
        # A warning goes above the lines below, not into them, as all else does that is printed meanwhile.
        self._send_warnings()

    def _send_warnings(self) -> None:
        for handler in self._warnings:
            handler.setStream(sys.stderr)

    def _look(self) -> Text:
        """The lines below, one column narrower than the terminal, for some wrap at the last."""
        width = self._console.width - 1
        lines = self._progress.lines(width, is_ascii=self._is_ascii) if self._progress is not None else []
        if self._doing:
            lines = [*lines, now_line(self._doing, time.monotonic() - self._begun_s, width)]
        return Text("\n".join(lines), style="cyan", no_wrap=True, overflow="crop")

    def begin(self, steps: int) -> None:
        self._progress = RunProgress(steps)

    def event(self, event: Event) -> None:
        if event.kind == _NOW:
            self._doing, self._begun_s = event.text.rstrip("."), time.monotonic()
            return
        if self._progress is not None:
            self._progress.add_event(event)
            if event.step is not None:
                self._doing = ""
        if event.step is None or self._progress is None or self._is_verbose:
            super().event(event)

    def say(self, text: str) -> None:
        self._console.print(escape(printable(text)), soft_wrap=True)

    def explain(self, text: str) -> None:
        # Broken between words; a line with an address stays one line, which can be copied.
        self._console.print(escape(printable(text)))

    def progress(self, name: str, fields: dict[str, Any], text: str) -> None:
        self._doing, self._begun_s = text, time.monotonic()

    def close(self) -> None:
        self._live.stop()
        self._send_warnings()


class JsonShow(Show):
    """JSON lines on stdout, `{"kind": ...}`; sentences on stderr, as lines of the log where that is JSON too."""

    def event(self, event: Event) -> None:
        if event.kind == _NOW:
            return
        fields: dict[str, Any] = {} if event.step is not None else {"text": event.text}
        for told in (event.step, event.held_out, event.traffic):
            if told is not None:
                fields |= msgspec.to_builtins(told)
        self.result(event.kind, fields, [])

    def say(self, text: str) -> None:
        if os.environ.get(LOG_FORMAT) == LogFormat.JSON:
            _logger.info("%s", text)
        else:
            _print(sys.stderr, text)

    def result(self, name: str, fields: dict[str, Any], lines: list[str]) -> None:
        super().say(json.dumps({"kind": name, **fields}))


def choose_show(*, as_json: bool, is_verbose: bool = False) -> Show:
    """By flags, and by whether anybody watches, on a terminal that can be written over."""
    if as_json:
        return JsonShow()
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return RichShow(is_verbose=is_verbose)
    return Show(is_verbose=is_verbose)


def introduce(settings: RunSettings, show: Show, *, for_training: bool) -> None:
    """Says what is learnt, and what the numbers to come mean."""
    if settings.about:
        show.explain(settings.about)
    if for_training:
        policy, tasks = settings.policy, settings.tasks
        held_out = policy.validation_temperature if tasks is not None and tasks.eval_file is not None else None
        show.explain(sampled_text(temperature=policy.temperature, held_out_temperature=held_out))
        show.begin(settings.trainer.steps)


def offer(show: Show, folder: Path, settings: RunSettings) -> None:
    """Says what a person may do with a run that is done."""
    activate = activation(os.environ, Path(sys.executable))
    for line in next_lines(named(folder, os.environ), has_agent=settings.agent is not None, activate=activate):
        show.say(line)


def activation(environ: Mapping[str, str], executable: Path) -> str | None:
    """The script that puts our command on a shell's PATH, where it is not: `make demo` calls it by its path."""
    script = executable.parent / "activate"
    if shutil.which("tracegrad", path=environ.get("PATH", "")) is not None or not script.exists():
        return None
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)


def named(folder: Path, environ: Mapping[str, str]) -> str:
    """A run as commands are told it: by its name where they look for it without being told, else by its folder."""
    return folder.name if folder.parent == Path(environ.get("TRACEGRAD_RUNS_DIR", "runs")).resolve() else str(folder)
