"""Log lines as JSON: one object a line, whose it is and which episodes it names, and no control character."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tracegrad.compose.printable_log import LOG_FORMAT, log_to_stderr

ROLLOUT = "7c1f3e9a0123456789abcdef0123"
EPISODE = ROLLOUT + "0a1b"


@pytest.fixture(name="lines")
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What a logger of ours writes, by line."""
    out = io.StringIO()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(out)])
    monkeypatch.setenv(LOG_FORMAT, "json")
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield from _logged(out)


def _logged(out: io.StringIO) -> Iterator[Any]:
    log_to_stderr(logging.INFO, "%(message)s", run="mine", process="streams-credit-0")
    try:
        yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    finally:
        logging.captureWarnings(False)


def test_a_line_says_run_process_and_episodes(lines: Any) -> None:
    """Each id once, in order; a longer number in hex, such as a digest, is none."""
    logging.getLogger("tracegrad.test").warning("%s of %s, %s again, digest %s", EPISODE, ROLLOUT, EPISODE, "ab" * 32)
    logging.getLogger("other").warning("nothing named")
    first, second = lines()
    assert first.pop("at").endswith("Z")
    assert first == {
        "level": "WARNING",
        "run": "mine",
        "process": "streams-credit-0",
        "logger": "tracegrad.test",
        "message": f"{EPISODE} of {ROLLOUT}, {EPISODE} again, digest {'ab' * 32}",
        "episodes": [EPISODE, ROLLOUT],
    }
    assert "episodes" not in second and second["process"] == "streams-credit-0"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_python_prints_by_itself_is_a_line_too(lines: Any) -> None:
    """A warning, and an error that a thread ends by, in its traceback."""
    warnings.warn("odd", UserWarning, stacklevel=1)
    thread = threading.Thread(target=lambda: 1 // 0, name="odd-job")
    thread.start()
    thread.join()
    warning, end = lines()
    assert (warning["level"], end["level"]) == ("WARNING", "CRITICAL") and "odd" in warning["message"]
    assert end["message"].startswith("the end of thread odd-job\nTraceback")


def test_a_thread_that_asks_to_exit_is_no_error(lines: Any) -> None:
    """As Python has it: it ends, and nothing is said."""
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()
    assert lines() == []


def test_what_others_say_stays_one_line(lines: Any) -> None:
    """A traceback too; nothing that a terminal would obey is in the bytes."""
    evil = 'a\nb\r\x1b]0;title\x07"}\u2028\ud800'
    try:
        raise KeyError(evil)
    except KeyError:
        logging.getLogger("tracegrad.test").exception("failed: %s", evil)
    [line] = lines()
    assert line["message"].startswith(f"failed: {evil}\nTraceback")
    assert json.dumps(line).isascii() and json.dumps(line).isprintable()
