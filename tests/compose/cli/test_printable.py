"""Whatever an outsider wrote, no control character of it reaches a terminal: it could rewrite what was said before."""

from __future__ import annotations

import io
import logging
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from tracegrad.compose import cli
from tracegrad.compose.cli.common import echo
from tracegrad.compose.run.serve import _set_up_logging
from tracegrad.compose.run.show import JsonShow, RichShow, Show
from tracegrad.consumers.views.tail import as_text
from tracegrad.consumers.views.terminal import Event
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.topics import Topic

EVIL = "a\x1b]0;title\x07b\x9b31mc\x85d\u202ee\u2066f\u200fg\x08h\ri\x7fj\x00"
ROOT = Path(__file__).parents[3]


def is_harmless(text: str) -> bool:
    """No C0 but tab and line feed, no DEL, no C1, no bidirectional control, no other line's end."""
    controls = [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
    return "a" in text and not controls


def _error() -> None:
    def fail(**_: object) -> None:
        raise UnavailableError(EVIL)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(cli, "app", fail)
        cli.main()


def _log() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        _set_up_logging()
        logging.getLogger("tracegrad.test").warning("said: %s", EVIL)
    finally:
        root.handlers = handlers
        root.setLevel(level)


def _rich() -> None:
    show = RichShow()
    show.say(EVIL)
    show.close()


def _tail() -> None:
    record = Record(topic="llm_calls", partition=0, offset=0, key=EVIL.encode(), value=EVIL.encode())
    echo(as_text(Topic.LLM_CALLS, record))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(lambda: Show().say(EVIL), id="a line"),
        pytest.param(_rich, id="a line on a terminal"),
        pytest.param(lambda: Show().event(Event(kind="episode", text=EVIL)), id="an event"),
        pytest.param(lambda: Show().result("report", {}, [EVIL]), id="the report"),
        pytest.param(lambda: JsonShow().say(EVIL), id="a line beside JSON"),
        pytest.param(lambda: JsonShow().result("report", {"a": EVIL}, []), id="JSON"),
        pytest.param(_tail, id="tail"),
        pytest.param(_error, id="an error"),
        pytest.param(_log, id="a process's log"),
    ],
)
def test_no_control_character_is_printed(path: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown as an escape, which is also JSON's."""
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr(sys, "stderr", printed)
    path()
    assert is_harmless(printed.getvalue()), repr(printed.getvalue())


def test_commands_print_by_echo_alone() -> None:
    """Any other way to print would miss the cure."""
    for file in (ROOT / "compose" / "cli").glob("*.py"):
        direct = re.findall(r"typer\.echo\(|\bprint\(", file.read_text())
        assert len(direct) == (file.name == "common.py"), file.name
