"""The lines that a terminal shows of a run's processes: each with how it is, why it ended last, and what it counted.

In: `RunState`. Out: text. Pure. Failure: none; a process that never reported has no counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from tracegrad.schemas.metrics import declared
from tracegrad.schemas.records.process_status import ProcessReport
from tracegrad.schemas.text import one_line

from .run_state import RunState

__all__ = ["process_lines", "process_rows"]

_SILENT_S = 10.0
"""A process reports every 2 s."""


class _Row(NamedTuple):
    """A process now, or its end."""

    name: str
    state: str
    pid: int | None
    up_s: int
    restarts: str
    why: str
    """Why it ended last; empty: it never did."""
    counted: str


def _rows(state: RunState, now_ms: int) -> Iterator[_Row]:
    for name in sorted({*state.supervised, *state.reports}):
        told, report = state.supervised.get(name), state.reports.get(name)
        if told and report and told.pid != report.pid:
            report = None  # of a predecessor that died
        pid = told.pid if told else report.pid if report else None
        since_ms = told.since_ms if told else report.since_ms if report else 0
        yield _Row(
            name=name,
            state=told.state if told else "running",
            pid=pid,
            up_s=max(0, now_ms - since_ms) // 1000 if pid else 0,
            restarts=f", {told.num_restarts} restarts" if told and told.num_restarts else "",
            why=told.why if told else "",
            counted=_counted(report, now_ms) if report else "",
        )


def process_lines(state: RunState, now_ms: int) -> list[str]:
    """Each process, why it ended last, and what it counted since its start."""
    lines = []
    for row in _rows(state, now_ms):
        lines.append(f"{row.name:24} {row.state:8} pid {row.pid or '-':>7}  {row.up_s:6d} s{row.restarts}")
        lines += ["  " + text for text in (row.why, row.counted) if text]
    return lines


def process_rows(state: RunState, now_ms: int, width: int) -> list[str]:
    """Each process in one row that is no wider: of one that has died why, of any other what it counted."""
    lines = []
    for row in _rows(state, now_ms):
        said = row.why if row.why and (row.pid is None or not row.counted) else row.counted
        text = f"{one_line(row.name):20} {row.state:8} {row.up_s:6d} s{row.restarts}  {one_line(said)}".rstrip()
        lines.append(text if len(text) <= width else text[: max(0, width - 3)] + "...")
    return lines


def _counted(report: ProcessReport, now_ms: int) -> str:
    """Every metric that its declaration wants on the terminal, summed over its labels."""
    words = []
    for metric in declared():
        values = [value for series, value in report.counters.items() if series.partition("{")[0] == metric.name]
        if metric.terminal and values:
            words.append(f"{math.fsum(values):g} {metric.terminal}")
    silent_s = (now_ms - report.at_ms) / 1000
    return ", ".join([*words, *([f"silent for {silent_s:.0f} s"] if silent_s > _SILENT_S else [])])
