"""Runs whose logs lie in memory, for replays from folder to folder; and what a user is told of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.memory_log import MemoryLog
from tracegrad.compose.history import replay as history
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring


class Told(Show):
    """What a user is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.counts: dict[str, int] = {}
        self.results: dict[str, dict[str, Any]] = {}

    def say(self, text: str) -> None:
        """Kept."""
        self.lines.append(text)

    def result(self, name: str, fields: dict[str, Any], lines: list[str]) -> None:
        """Kept by name, and its lines."""
        self.results[name] = fields
        self.lines += lines

    def progress(self, name: str, fields: dict[str, Any], text: str) -> None:
        """The last counts."""
        self.counts = fields["counts"]


def hold_in_memory(logs: dict[str, MemoryLog], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each run read and write the log under its name; that of a new one is made when its topics are."""
    monkeypatch.setattr(Wiring, "log", lambda wiring, *_, **__: logs[wiring.record.name])

    def make(wiring: Wiring) -> None:
        log = logs.setdefault(wiring.record.name, MemoryLog())
        log.create_topics(wiring.topics, policies=["policy"])

    @contextlib.contextmanager
    def opened(_: object, **__: object) -> Iterator[str]:
        yield "127.0.0.1:1"

    monkeypatch.setattr(history, "prepare_topics", make)
    monkeypatch.setattr(history, "open_broker", opened)
    monkeypatch.setattr(history, "own_broker", opened)
