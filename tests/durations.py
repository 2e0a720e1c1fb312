"""How long each test file takes, by the clock and by the processor; from it the second tier was cut.

    TRACEGRAD_TEST_DURATIONS=docs/results/test_durations.md python -m pytest -m "" --all -p tests.durations

In: a run of pytest. Out: a page of Markdown. Processes that outlive their test, as a broker does, count for no file's
processor. On a busy machine the processor's seconds say more than the clock's.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

_MOST = 60


class Took(NamedTuple):
    """Of some tests."""

    num: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: Took) -> Took:
        """Of both."""
        return Took(self.num + other.num, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


_FILES: defaultdict[str, Took] = defaultdict(Took)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test, with what is set up for it."""
    wall_s, cpu_s = time.monotonic(), _cpu_s()
    result = yield
    file = item.nodeid.partition("::")[0]
    _FILES[file] = _FILES[file].plus(Took(1, time.monotonic() - wall_s, _cpu_s() - cpu_s))
    return result


def pytest_sessionfinish() -> None:
    """Writes the page."""
    if where := os.environ.get("TRACEGRAD_TEST_DURATIONS"):
        Path(where).write_text(page(_FILES))


def page(files: Mapping[str, Took], note: str = "") -> str:
    """The slowest files, and sums by folder."""
    folders: defaultdict[str, Took] = defaultdict(Took)
    for file, took in files.items():
        folder = "/".join(file.split("/")[1:-1][:2]) or "."
        folders[folder] = folders[folder].plus(took)
    slowest = sorted(files.items(), key=lambda one: -one[1].wall_s)[:_MOST]
    total = Took()
    for took in files.values():
        total = total.plus(took)
    return "\n".join(
        (
            "# How long the tests take\n",
            "Made by `TRACEGRAD_TEST_DURATIONS=docs/results/test_durations.md python -m pytest -m '' --all -p",
            f"tests.durations`: {total.num:,} tests, {total.wall_s:,.0f} s by the clock, {total.cpu_s:,.0f} s of a",
            "processor.",
            note,
            f"\n## The {len(slowest)} slowest files\n",
            *_table("file", slowest),
            "\n## Folders\n",
            *_table("folder", sorted(folders.items())),
            "",
        )
    )


def _table(of: str, rows: list[tuple[str, Took]]) -> list[str]:
    lines = [f"| {of} | tests | seconds | processor |", "|---|---|---|---|"]
    return lines + [f"| {name} | {took.num} | {took.wall_s:.1f} | {took.cpu_s:.1f} |" for name, took in rows]
