"""Log lines as JSON: one object a line, whose it is and which episodes it names, and no control character."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from tracegrad.compose.printable_log import LOG_FORMAT, log_to_stderr

ROLLOUT = "7c1f3e9a0123456789abcdef0123"
EPISODE = ROLLOUT + "0a1b"


@pytest.fixture(name="lines")
def logged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a logger of ours writes, by line."""
    out = io.StringIO()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(out)])
    monkeypatch.setenv(LOG_FORMAT, "json")
    log_to_stderr(logging.INFO, "%(message)s", run="mine", process="streams-credit-0")
    return lambda: [json.loads(line) for line in out.getvalue().splitlines()]


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
