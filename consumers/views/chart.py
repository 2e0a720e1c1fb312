"""A run's curves as a picture: raw values faint, their running mean strong, held-out scores with their intervals.

In: the numbers of a run. Out: the text of an SVG file. Invariant: any numbers give a valid file (None and NaN are
gaps), equal numbers equal bytes. matplotlib is imported when a chart is drawn: no other command waits for it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tracegrad.schemas.records.episodes import AIR_RULE

from .held_out import HeldOut
from .results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "running_mean"]

_RED, _GREEN, _GREY = "#c1552b", "#2f8f5b", "#4a4a4a"
_STYLE: Any = {
    # Text stays text, so that it can be searched; ids are made of the salt, so that equal numbers give equal bytes.
    "svg.fonttype": "none",
    "svg.hashsalt": "tracegrad",
    "font.size": 9.0,
    "axes.prop_cycle": "cycler(color=['#1f5fa8', '#8a4fa3', '#b08a1e', '#2f8f5b', '#c1552b', '#4a4a4a'])",
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
}
_SHARE = (-0.03, 1.03)


class _Panel(NamedTuple):
    title: str
    unit: str
    curves: dict[str, Sequence[float | None]]
    """What the legend says -> values by step."""


def running_mean(values: Sequence[float | None], window: int) -> list[float]:
    """Mean of the last `window` values that are there, at each place; NaN where none is."""
    if not values:
        return []
    windows = sliding_window_view(np.array([*[None] * (window - 1), *values], dtype=float), window)
    num_there = np.isfinite(windows).sum(axis=1)
    nowhere = np.full(len(values), np.nan)
    means: list[float] = np.divide(np.nansum(windows, axis=1), num_there, out=nowhere, where=num_there > 0).tolist()
    return means


def draw(results: Results) -> str:
    """The SVG of a run; blocking, a second with the first import."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = _panels(results)
    window = max(3, round(results.steps / 12))
    with rc_context(_STYLE):
        figure = Figure(figsize=(8.0, 0.6 + 2.1 * len(panels)), layout="constrained")
        figure.suptitle(f"run {results.run}: {results.steps} steps (lines: mean of the last {window})")
        rewards, shares, *_, staleness = drawn = list(figure.subplots(len(panels), 1, sharex=True))
        for axes, panel in zip(drawn, panels, strict=True):
            axes.set_title(panel.title)
            axes.set_ylabel(panel.unit)
            for name, values in panel.curves.items():
                _curve(axes, values, window, name)
        _held_out(rewards, results.before, 0, "held-out before", _RED)
        for between in results.held_out[1:-1]:
            _held_out(rewards, between, between.step, None, _GREY)
        _held_out(rewards, results.after, results.steps + 1, "held-out after", _GREEN)
        if all(0 <= value <= 1 for value in results.curves.get("reward", []) if value is not None):
            rewards.set_ylim(_SHARE)
        shares.set_ylim(_SHARE)
        staleness.set_ylim(bottom=0)
        staleness.set_xlabel("training step")
        staleness.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in drawn:
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="best")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _panels(results: Results) -> list[_Panel]:
    """From top to bottom; of intermediate rewards only where there are some."""
    curves = results.curves
    rules = {name.removeprefix(AIR_RULE): values for name, values in curves.items() if name.startswith(AIR_RULE)}
    panels = [
        _Panel("final reward", "mean reward", {"training": curves.get("reward", ())}),
        _Panel("tool calls that succeeded", "share of calls", {"succeeded": curves.get("tool_success", ())}),
        _Panel("intermediate reward by rule", "reward per rollout", {**rules}),
        _Panel("staleness", "versions", {"mean over trained tokens": curves.get("staleness", ())}),
    ]
    return [panel for panel in panels if panel.curves]


def _curve(axes: Axes, values: Sequence[float | None], window: int, name: str) -> None:
    if not values:
        return
    steps = range(1, len(values) + 1)
    line = axes.plot(steps, running_mean(values, window), linewidth=2.0, label=name)[0]
    raw = np.array(values, dtype=float)
    axes.plot(steps, raw, color=line.get_color(), alpha=0.28, linewidth=0.9, marker="o", markersize=1.6, zorder=1.9)


def _held_out(axes: Axes, held_out: HeldOut | None, step: int, name: str | None, colour: str) -> None:
    if held_out is None or held_out.mean is None or held_out.low is None or held_out.high is None:
        return
    around = [[held_out.mean - held_out.low], [held_out.high - held_out.mean]]
    numbers = f"{held_out.mean:.3f}, 95% {held_out.low:.3f} to {held_out.high:.3f} ({held_out.num_scored} tasks)"
    label = f"{name}: {numbers}" if name else None
    axes.errorbar(
        [step], [held_out.mean], yerr=np.maximum(0.0, around), label=label,
        fmt="D", markersize=5, capsize=4, linewidth=1.6, color=colour, clip_on=False, zorder=3,
    )  # fmt: skip
