"""A run's processes: how each is, why it ended last, and what it counted.

In: `RunState`. Out: a `ProcessRow` each, for the page, and the lines of a terminal. Pure. Failure: none; a process that
never reported has no counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tracegrad.schemas.metrics import DEAD_LETTERS, GROUPS_EXCLUDED, Gauge, declared
from tracegrad.schemas.reasons import reason_text
from tracegrad.schemas.records.process_status import ProcessReport
from tracegrad.schemas.text import one_line

from .run_state import RunState

_SILENT_S = 10.0
"""A process reports every 2 s."""


class ProcessRow(NamedTuple):
    """A process now, or its end."""

    name: str
    state: str
    pid: int | None
    since_ms: int
    num_restarts: int
    why: str
    """Why it ended last; empty: it never did."""
    counted: list[str]
    """What it did since its start."""
    at_ms: int | None
    """When it said so; None: it never did."""


def process_rows(state: RunState, *, is_live: bool = True) -> Iterator[ProcessRow]:
    """By name; of a run that has ended none runs, whatever its last word was."""
    for name in sorted({*state.supervised, *state.reports}):
        told, report = state.supervised.get(name), state.reports.get(name)
        if told and report and told.pid != report.pid and (is_live or told.pid is not None):
            report = None  # of a predecessor that died
        one = told or report
        word = told.state.value if told else "running"
        yield ProcessRow(
            name=name,
            state=word if is_live or word != "running" else "ended",
            pid=one.pid if one and is_live else None,
            since_ms=one.since_ms if one else 0,
            num_restarts=told.num_restarts if told else 0,
            why=told.why if told else "",
            counted=_counted(report, is_live=is_live) if report else [],
            at_ms=report.at_ms if report else None,
        )


def _counted(report: ProcessReport, *, is_live: bool) -> list[str]:
    """Every metric that its declaration wants on the terminal, summed over its labels. Of a process that has ended
    nothing is open or to come: what it counted, not what it measured last."""
    words = []
    for metric in declared():
        if isinstance(metric, Gauge) and not is_live:
            continue
        values = [value for series, value in report.counters.items() if series.partition("{")[0] == metric.name]
        if metric.terminal and values:
            words.append(f"{math.fsum(values):,.0f} {metric.terminal}")
    return words


def process_lines(state: RunState, now_ms: int, width: int | None = None) -> list[str]:
    """Each process, why it ended last, and what it counted since its start; by `width` in one row that is no wider: of
    one that has died why, of any other what it counted."""
    lines = []
    for row in process_rows(state):
        up_s = max(0, now_ms - row.since_ms) // 1000 if row.pid else 0
        restarts = f", {row.num_restarts} restarts" if row.num_restarts else ""
        silent_s = (now_ms - row.at_ms) / 1000 if row.pid and row.at_ms is not None else 0.0
        silence = [f"silent for {silent_s:.0f} s"] if silent_s > _SILENT_S else []
        counted = ", ".join([*row.counted, *silence])
        if width is None:
            lines.append(f"{row.name:24} {row.state:8} pid {row.pid or '-':>7}  {up_s:6d} s{restarts}")
            lines += ["  " + text for text in (row.why, counted) if text]
            continue
        said = row.why if row.why and (row.pid is None or not counted) else counted
        text = f"{one_line(row.name):20} {row.state:8} {up_s:6d} s{restarts}  {one_line(said)}".rstrip()
        lines.append(text if len(text) <= width else text[: max(0, width - 3)] + "...")
    return lines


def left_out_lines(state: RunState) -> list[str]:
    """Why processes left groups and records out since their starts: `3 groups excluded, stale: ...`."""
    lines = []
    for metric, what in ((GROUPS_EXCLUDED, "groups excluded"), (DEAD_LETTERS, "dead letters")):
        counts = Counter[str]()
        for report in state.reports.values():
            for series, num in report.counters.items():
                name, _, label = series.removesuffix("}").partition("{reason=")
                if name == metric.name and label:
                    counts[label] += int(num)
        lines += [f"{num} {what}, {reason_text(reason)}" for reason, num in counts.most_common()]
    return lines
