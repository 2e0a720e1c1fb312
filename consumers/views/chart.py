"""A small SVG writer: line panels one above the other, with a legend, an axis in numbers and nothing else.

In: panels of named series of points. Out: the text of an SVG file. Invariant: any numbers give a valid file (NaN and
None points are gaps); equal input gives equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

import msgspec

__all__ = ["Panel", "Series", "draw"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 220, 56, 170, 34, 30
Place = Callable[[float, float], tuple[float, float]]
_COLOURS = ("#1f5fa8", "#c1552b", "#2f8f5b", "#8a4fa3", "#b08a1e", "#4a4a4a")


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One line, or marks when `is_marks`."""

    name: str
    points: tuple[tuple[float, float | None], ...]
    is_marks: bool = False


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One plot."""

    title: str
    series: tuple[Series, ...]
    least: float | None = 0.0
    """Bottom of the axis; None: from the data."""
    greatest: float | None = None
    """Top of the axis; None: from the data."""


def draw(title: str, panels: Sequence[Panel]) -> str:
    """The SVG of the panels, top to bottom, on a common x axis."""
    height = 40 + _HEIGHT * len(panels)
    xs = [x for panel in panels for series in panel.series for x, _ in series.points]
    x_range = (min(xs, default=0.0), max(xs, default=1.0))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="16">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, x_range, 40 + number * _HEIGHT)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, x_range: tuple[float, float], top: int) -> list[str]:
    ys = [y for series in panel.series for _, y in series.points if y is not None and math.isfinite(y)]
    least = panel.least if panel.least is not None else min(ys, default=0.0)
    greatest = panel.greatest if panel.greatest is not None else max(ys, default=1.0)
    if greatest <= least:
        greatest = least + 1.0
    bottom, right = top + _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        width = (x_range[1] - x_range[0]) or 1.0
        share = min(1.0, max(0.0, (y - least) / (greatest - least)))
        return (
            round(_LEFT + (x - x_range[0]) / width * (right - _LEFT), 1),
            round(bottom - share * (bottom - top - _TOP), 1),
        )

    parts = [f'<text x="{_LEFT}" y="{top + 20}" font-weight="bold">{escape(panel.title)}</text>']
    for tick in range(5):
        value = least + (greatest - least) * tick / 4
        _, y = place(x_range[0], value)
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#555">{value:.3g}</text>')
    for x in sorted({round(x_range[0] + (x_range[1] - x_range[0]) * tick / 4) for tick in range(5)}):
        parts.append(f'<text x="{place(x, least)[0]}" y="{bottom + 18}" text-anchor="middle" fill="#555">{x:g}</text>')
    for number, series in enumerate(panel.series):
        colour = _COLOURS[number % len(_COLOURS)]
        parts += _marks(series, place, colour) if series.is_marks else _line(series, place, colour)
        y = top + _TOP + 18 * number
        parts.append(f'<rect x="{right + 14}" y="{y}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{right + 32}" y="{y + 7}">{escape(series.name)}</text>')
    return parts


def _line(series: Series, place: Place, colour: str) -> list[str]:
    """One polyline per run of points without a gap."""
    runs: list[list[str]] = [[]]
    for x, y in series.points:
        if y is None or not math.isfinite(y):
            runs.append([])
        else:
            runs[-1].append("{},{}".format(*place(x, y)))
    return [
        f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" stroke-width="1.8"/>' for run in runs if run
    ]


def _marks(series: Series, place: Place, colour: str) -> list[str]:
    return [
        '<circle cx="{}" cy="{}" r="5" fill="{}"/>'.format(*place(x, y), colour)
        for x, y in series.points
        if y is not None and math.isfinite(y)
    ]
