"""Whatever an outsider wrote, no control character of it reaches a terminal: it could rewrite what was said before."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer import Exit

from tests.consumers.audit.small_run import RING
from tests.memory_log import MemoryLog
from tests.streams.make import TOPICS
from tracegrad.compose import cli
from tracegrad.compose.cli import look
from tracegrad.compose.cli.common import echo
from tracegrad.compose.run import report as report_module
from tracegrad.compose.run.run_dir import Endpoints
from tracegrad.compose.run.serve import _set_up_logging
from tracegrad.compose.run.show import JsonShow, RichShow, Show
from tracegrad.consumers.audit.account import AccountLine, Report
from tracegrad.consumers.views.tail import as_text
from tracegrad.consumers.views.terminal import Event
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessReport, ProcessState, SupervisedProcess
from tracegrad.schemas.topics import Topic

EVIL = "a\x1b]0;title\x07b\x9b31mc\x85d\u202ee\u2066f\u200fg\x08h\ri\x7fj\x00"
ROOT = Path(__file__).parents[3]


def is_harmless(text: str) -> bool:
    """No C0 but tab and line feed, no DEL, no C1, no bidirectional control, no other line's end."""
    controls = [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
    return "a" in text and not controls


@contextlib.contextmanager
def _without_handlers() -> Iterator[None]:
    """As a process begins; pytest's own handlers would be taken for those of a user."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


def _main(run: Callable[[], None]) -> None:
    with _without_handlers(), pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(cli, "app", lambda **_: run())
        cli.main()


def _error() -> None:
    def fail() -> None:
        raise UnavailableError(EVIL)

    _main(fail)


def _fault() -> None:
    def fail() -> None:
        try:
            raise KeyError(EVIL)
        except KeyError as error:
            raise ZeroDivisionError(EVIL) from error

    _main(fail)


def _warning() -> None:
    _main(lambda: logging.getLogger("tracegrad.test").warning("said: %s", EVIL))


def _log() -> None:
    with _without_handlers():
        _set_up_logging()
        logging.getLogger("tracegrad.test").warning("said: %s", EVIL)
        logging.getLogger("tracegrad.test").error("failed", exc_info=ZeroDivisionError(EVIL))


def _look(command: Callable[..., None], **options: Any) -> None:
    """A command on a run whose every word is somebody else's."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    told = SupervisedProcess(process=EVIL, state=ProcessState.RUNNING, pid=1, num_restarts=1, why=EVIL)
    report = ProcessReport(process=EVIL, pid=1, since_ms=0, at_ms=0, counters={EVIL: 1.0})
    for record in (told, report):
        log.append(TOPICS.name(Topic.PROCESS_STATUS), b"x", PROCESS_STATUS.encode(record), ((EVIL, b"x"),), 0)
    folder = SimpleNamespace(
        path=EVIL,
        weights=EVIL,
        is_locked=lambda name="supervisor": name == "supervisor",
        endpoints_file=SimpleNamespace(stat=_no_stat),
        replayed=None,
    )
    wiring = SimpleNamespace(
        run_dir=folder,
        record=SimpleNamespace(name=EVIL, hash="1f2e3d4c"),
        topics=TOPICS,
        settings=SimpleNamespace(policy=SimpleNamespace(name="policy")),
        endpoints=Endpoints(bootstrap_servers=EVIL, llm_url=EVIL, otlp_endpoint=EVIL, engine_urls=(EVIL,)),
        kafka=lambda: log,
        ring=RING,
    )
    unit = AccountLine(total=1, terms={EVIL: 1})
    missing = Report(
        run=RunHash("1f2e3d4c"), calls=unit, episodes=unit, groups=unit, feedback=unit,
        missing=[EVIL], num_missing=1, num_steps=0,
        expired=[EVIL], unverified=[EVIL], num_unverified=1,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Exit):
        patch.setattr(look, "find_run", lambda *_: wiring)
        patch.setattr(look, "reachable_log", lambda _: log)
        patch.setattr(look, "answering", contextlib.nullcontext)
        patch.setattr(report_module, "account", lambda *_, **__: missing)
        command(**options)


def _no_stat() -> SimpleNamespace:
    return SimpleNamespace(st_mtime=0.0)


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
        pytest.param(_fault, id="an error that nobody expected"),
        pytest.param(_warning, id="a warning of a command"),
        pytest.param(lambda: _look(look.status), id="status"),
        pytest.param(lambda: _look(look.status, as_json=True), id="status as JSON"),
        pytest.param(lambda: _look(look.audit), id="audit"),
        pytest.param(lambda: _look(look.audit, as_json=True), id="audit as JSON"),
        pytest.param(lambda: _look(look.tail, topic="process_status"), id="tail of a topic"),
        pytest.param(lambda: _look(look.tail, topic="process_status", as_json=True), id="tail as JSON"),
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
