"""A run's curves as numbers for the charts of a browser.

In: the surviving steps, the held-out passes. Out: one record of charts, JSON-able, whose series share one axis of
steps; None is a gap. Invariant: pure; bounded: of a long run neighbouring steps are put together, each by its mean.
Failure: none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracegrad.schemas.records.training import TrainingStep

from ..views.held_out import HeldOut

_POINTS = 1_000
_SMOOTH = 10
_USUAL, _FAR, _ROOM = 0.9, 3.0, 1.5
"""Nine of ten steps take no longer than the usual time; where one takes three times as long the picture ends at one and
a half of it."""
Values = Sequence[float | None]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    name: str
    values: Values
    form: str = "line"
    """`line`, `faint`, `strong`, or `points`, which may have whiskers."""
    low: Values = ()
    """The whiskers' lower ends; empty: none."""
    high: Values = ()


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One picture."""

    id: str
    title: str
    unit: str
    series: list[Series]
    is_stacked: bool = False
    is_share: bool = False
    """Whether its values lie between 0 and 1."""
    steps: list[float] = []
    """An axis of its own; empty: that of all."""
    top: float | None = None
    """Where the picture ends; None: at the greatest value."""


class Charts(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run."""

    steps: list[float]
    charts: list[Chart]
    alarms: dict[str, list[int]] = {}
    """Name -> the steps at which it began to hold."""


def running_mean(values: Values, window: int) -> list[float]:
    """Mean of the last `window` values that are there, at each place; NaN where none is."""
    if not values:
        return []
    windows = sliding_window_view(np.array([*[None] * (window - 1), *values], dtype=float), window)
    num_there = np.isfinite(windows).sum(axis=1)
    nowhere = np.full(len(values), np.nan)
    means: list[float] = np.divide(np.nansum(windows, axis=1), num_there, out=nowhere, where=num_there > 0).tolist()
    return means


def charts_of(steps: Sequence[TrainingStep], passes: Sequence[HeldOut]) -> Charts:
    """Of the steps that survive."""
    rows = _Rows(steps, passes)
    charts = [
        Chart(id="reward", title="Reward", unit="final reward", series=[*rows.smoothed("reward"), *rows.held_out()]),
        Chart(id="rules", title="Reward by part and rule", unit="a rollout", series=rows.by_key("reward_parts")),
        Chart(
            id="tools",
            title="Tool calls that succeed",
            unit="share",
            is_share=True,
            series=rows.smoothed("tool_success"),
        ),
        Chart(id="entropy", title="Entropy", unit="nats a token", series=[rows.line("entropy", "entropy")]),
        Chart(
            id="staleness",
            title="Staleness",
            unit="versions",
            series=[rows.line("mean", "staleness_mean"), rows.line("greatest", "staleness_max", "faint")],
        ),
        Chart(
            id="clip",
            title="Clipped tokens",
            unit="share",
            series=[
                rows.line("all", "clip_fraction"),
                rows.line("of a positive advantage", "clip_fraction_positive", "faint"),
            ],
        ),
        Chart(id="speed", title="Tokens a second", unit="trained tokens/s", series=[rows.speed()]),
        _time(rows.by_key("seconds")),
    ]
    return Charts(
        steps=rows.steps,
        charts=[chart for chart in charts if any(value is not None for one in chart.series for value in one.values)],
        alarms={name: [first for first, _ in spells] for name, spells in alarm_spells(steps).items()},
    )


class _Rows:
    """One row a step; also of a pass whose step is none, as of the one before training."""

    def __init__(self, steps: Sequence[TrainingStep], passes: Sequence[HeldOut]) -> None:
        numbers = sorted({step.step for step in steps} | {one.step for one in passes})
        self._width = max(1, math.ceil(len(numbers) / _POINTS))
        of_step, of_pass = {step.step: step for step in steps}, {one.step: one for one in passes}
        self._rows = [of_step.get(number) for number in numbers]
        self._passes = [of_pass.get(number) for number in numbers]
        self.steps = [at for at in self._thin([float(number) for number in numbers]) if at is not None]

    def line(self, name: str, field: str, form: str = "line") -> Series:
        """A field of the steps."""
        return Series(name=name, values=self._thin(self._of(field)), form=form)

    def smoothed(self, field: str) -> list[Series]:
        """A field raw, and its running mean."""
        smooth = Series(name="mean of ten", values=self._thin(running_mean(self._of(field), _SMOOTH)), form="strong")
        return [self.line("each step", field, "faint"), smooth]

    def by_key(self, field: str) -> list[Series]:
        """A line for each key of a field that is a table."""
        tables = [{} if row is None else getattr(row, field) for row in self._rows]
        keys = dict.fromkeys(key for table in tables for key in table)
        return [Series(name=key, values=self._thin([table.get(key) for table in tables])) for key in keys]

    def speed(self) -> Series:
        """Trained tokens over the time from a step's start to its end."""
        return Series(name="tokens/s", values=self._thin([_speed(row) for row in self._rows]))

    def held_out(self) -> list[Series]:
        """Scores with their intervals; nothing where there is none."""
        if not any(self._passes):
            return []
        mean, low, high = (
            self._thin([getattr(one, name) if one is not None else None for one in self._passes])
            for name in ("mean", "low", "high")
        )
        return [Series(name="held-out", values=mean, form="points", low=low, high=high)]

    def _of(self, field: str) -> list[float | None]:
        return [None if row is None else getattr(row, field) for row in self._rows]

    def _thin(self, values: Values) -> list[float | None]:
        """Neighbours put together; what is not finite is a gap."""
        known = [value if value is not None and math.isfinite(value) else None for value in values]
        parts = (
            [value for value in known[at : at + self._width] if value is not None]
            for at in range(0, len(known), self._width)
        )
        return [fmean(part) if part else None for part in parts]


def alarm_spells(steps: Sequence[TrainingStep]) -> dict[str, list[tuple[int, int]]]:
    """Alarm -> (first, last step) of each time that it held."""
    found: dict[str, list[tuple[int, int]]] = {}
    before: frozenset[str] = frozenset()
    for step in steps:
        for name in step.alarms:
            spells = found.setdefault(name, [])
            if name in before:
                spells[-1] = (spells[-1][0], step.step)
            else:
                spells.append((step.step, step.step))
        before = frozenset(step.alarms)
    return found


def _time(series: list[Series]) -> Chart:
    """What few steps waited for, an engine that loads or a run that was stopped, does not flatten all others."""
    sums = [sum(value or 0.0 for value in of_step) for of_step in zip(*(one.values for one in series), strict=True)]
    usual = sorted(sums)[math.ceil(_USUAL * (len(sums) - 1))] if sums else 0.0
    top = _ROOM * usual if sums and max(sums) > _FAR * usual > 0 else None
    beyond = [value for value in sums if top is not None and value > top]
    said = f"; {len(beyond)} beyond the picture, up to {max(beyond):.0f}" if beyond else ""
    return Chart(
        id="time", title="Where a step's time goes", unit=f"seconds{said}", is_stacked=True, series=series, top=top
    )


def _speed(row: TrainingStep | None) -> float | None:
    if row is None or row.ended_at_ms <= row.started_at_ms:
        return None
    return 1000 * row.num_tokens / (row.ended_at_ms - row.started_at_ms)
