"""How a run's steps are printed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import new_state, read
from tests.house import ROOT
from tracegrad.compose.printable_log import LOG_FORMAT
from tracegrad.compose.run.show import JsonShow, Show, activation, named
from tracegrad.consumers.views.terminal import StepLines
from tracegrad.schemas.topics import Topic


def test_plain_and_json_lines() -> None:
    """One line per step each; a header once."""
    events = read(StepLines(), new_state(), small_run(), (Topic.TRAINING_STEPS,))
    plain, machine = io.StringIO(), io.StringIO()
    for event in events:
        Show(plain).event(event)
        JsonShow(machine).event(event)
    assert "reward" in plain.getvalue() and "0.250" in plain.getvalue() and "lag" not in plain.getvalue()
    lines = [json.loads(line) for line in machine.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "step"] and lines[1]["version"] == 2


def test_sentences_are_lines_of_the_log_where_that_is_json(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else plain, on stderr; results are neither."""
    show = JsonShow()
    show.say("it begins")
    monkeypatch.setenv(LOG_FORMAT, "json")
    show.say("it ends")
    show.result("page", {"url": "u"}, ["look at u"])
    told = capsys.readouterr()
    assert (told.err.splitlines()[0], caplog.messages) == ("it begins", ["it ends"])
    assert [json.loads(line) for line in told.out.splitlines()] == [{"kind": "page", "url": "u"}]


def test_the_lag_is_for_who_asks() -> None:
    """Under its name."""
    out = io.StringIO()
    for event in read(StepLines(lambda: 12345), new_state(), small_run(), (Topic.TRAINING_STEPS,)):
        Show(out, is_verbose=True).event(event)
    head, line, *_ = out.getvalue().splitlines()
    assert line[head.index("lag") - 4 : head.index("lag") + 3].strip() == "12345"


ON_TERMINAL = """
from tests.consumers.views.test_progress import scored, step
import logging
from tracegrad.compose.printable_log import log_to_stderr
from tracegrad.compose.run.show import choose_show
from tracegrad.consumers.views.terminal import Event
log_to_stderr(logging.WARNING, "%(message)s")
show = choose_show(as_json=False)
show.begin(10)
show.say("about it")
for number in (1, 2, 3):
    show.event(step(number, number / 10))
show.event(scored(0, 0.25, 0))
show.event(Event(kind="now", text="The trainer waits for rollouts."))
logging.warning("a broker is away")
show._live.refresh() if hasattr(show, "_live") else None
show.close()
show.say("the end")
"""


def on_terminal(**environ: str) -> str:
    """What a terminal of 80 columns is sent."""
    ours, theirs = os.openpty()
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environ}
    with subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL], stdout=theirs, stderr=theirs, cwd=ROOT, env=env
    ) as process:
        os.close(theirs)
        sent = b""
        with contextlib.suppress(OSError):  # what a terminal that is closed gives
            while part := os.read(ours, 65_536):
                sent += part
    os.close(ours)
    assert process.returncode == 0
    return sent.decode()


@pytest.mark.slow
def test_a_terminal_shows_how_far_the_run_is_below_what_happens() -> None:
    """In place of a line a step; gone when the run is, with the cursor back."""
    sent = on_terminal()
    assert "step 3 of 10, version 3, 42 s left" in sent and "reward 0.200 (all 3) \u2581\u2582\u2583" in sent
    assert "held-out before: 0.250" in sent
    assert "The trainer waits for rollouts, 0 s" in sent
    assert re.search(r"(\n|\x1b\[2K)a broker is away *\r\n", sent), "a warning has a line of its own"
    assert "staleness" not in sent and sent.index("about it") < sent.index("step 3")
    assert sent.rindex("\x1b[?25h") > sent.rindex("\x1b[?25l") and sent.rstrip().endswith("the end")
    assert "\x1b[3" not in on_terminal(NO_COLOR="1")


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_lines() -> None:
    """It can write over nothing."""
    sent = on_terminal(TERM="dumb")
    assert "\x1b" not in sent and "staleness" in sent and "   0.300" in sent


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run prints to a file on a full disk is lost; the run goes on."""
    # The buffer that cannot be written is tried again by `close`, which the test leaves to the descriptor.
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        full = io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), write_through=True)
        monkeypatch.setattr("sys.stderr", full)
        Show(full).say("step 1")
        JsonShow(full).say("step 1")
        JsonShow(full).result("step", {"step": 1}, [])
    finally:
        os.close(descriptor)


def test_a_reader_that_left_ends_a_run() -> None:
    """`| head`: nobody is there to see the rest."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with pytest.raises(BrokenPipeError):
            Show(io.TextIOWrapper(io.FileIO(writer, "w", closefd=False), write_through=True)).say("step 1")
    finally:
        os.close(writer)


def test_a_run_is_named_as_commands_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its folder where they would not."""
    monkeypatch.chdir(tmp_path)
    assert named(tmp_path / "runs" / "mine", {}) == "mine"
    assert named(tmp_path / "other" / "mine", {}) == str(tmp_path / "other" / "mine")
    assert named(tmp_path / "other" / "mine", {"TRACEGRAD_RUNS_DIR": "other"}) == "mine"


def test_a_shell_that_does_not_find_our_command_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make demo` calls it by its path, and then names commands."""
    monkeypatch.chdir(tmp_path)
    bin_ = tmp_path / ".venv" / "bin"
    bin_.mkdir(parents=True)
    assert activation({"PATH": "/nowhere"}, bin_ / "python") is None
    (bin_ / "activate").touch()
    (bin_ / "tracegrad").touch(0o755)
    assert activation({"PATH": "/nowhere"}, bin_ / "python") == ".venv/bin/activate"
    assert activation({"PATH": str(bin_)}, bin_ / "python") is None
    monkeypatch.chdir("/")
    assert activation({}, tmp_path / "venv" / "bin" / "python") is None
