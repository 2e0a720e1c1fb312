"""A run's curves as a picture: raw values faint, their running mean strong, held-out scores with their intervals.

In: the numbers of a run. Out: the text of an SVG file. Invariant: any numbers give a valid file (None and NaN are
gaps), equal numbers equal bytes. matplotlib is imported when a chart is drawn: no other command waits for it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .results import HeldOut, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "running_mean"]

_BLUE, _RED, _GREEN = "#1f5fa8", "#c1552b", "#2f8f5b"
_RULE_COLOURS = ("#8a4fa3", "#b08a1e", "#2f8f5b", "#c1552b", "#4a4a4a")
_STYLE: Any = {
    # Text stays text, so that it can be searched; ids are made of the salt, so that equal numbers give equal bytes.
    "svg.fonttype": "none",
    "svg.hashsalt": "tracegrad",
    "font.size": 9.0,
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


def running_mean(values: Sequence[float | None], window: int) -> list[float]:
    """Mean of the last `window` values that are there, at each place; NaN where none is."""
    numbers = np.array([np.nan if value is None else value for value in values], dtype=float)
    sums = np.cumsum(np.concatenate([[0.0], np.nan_to_num(numbers)]))
    counts = np.cumsum(np.concatenate([[0], np.isfinite(numbers)]))
    begins = np.maximum(0, np.arange(1, len(numbers) + 1) - window)
    num_there = counts[1:] - counts[begins]
    with np.errstate(invalid="ignore"):
        means = (sums[1:] - sums[begins]) / np.where(num_there == 0, np.nan, num_there)
    return [float(mean) for mean in means]


def draw(results: Results) -> str:
    """The SVG of a run; blocking, a second with the first import."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rules = [name for name in results.curves if name.startswith("air:")]
    num_panels = 4 if rules else 3
    window = max(3, round(results.steps / 12))
    with rc_context(_STYLE):
        figure = Figure(figsize=(8.0, 0.6 + 2.1 * num_panels), layout="constrained")
        figure.suptitle(f"run {results.run}: {results.steps} steps (lines: mean of the last {window})")
        panels = list(figure.subplots(num_panels, 1, sharex=True, squeeze=False)[:, 0])
        _rewards(panels[0], results, window)
        _share(panels[1], results, window)
        if rules:
            for colour, rule in zip(_cycled(len(rules)), rules, strict=True):
                _curve(panels[2], results.curves[rule], window, rule.removeprefix("air:"), colour)
            _dress(panels[2], "intermediate reward by rule", "reward per rollout")
        _curve(panels[-1], results.curves.get("staleness", []), window, "mean over trained tokens", _BLUE)
        _dress(panels[-1], "staleness", "versions")
        panels[-1].set_ylim(bottom=0)
        panels[-1].set_xlabel("training step")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _rewards(panel: Axes, results: Results, window: int) -> None:
    _curve(panel, results.curves.get("reward", []), window, "training", _BLUE)
    _held_out(panel, results.before, 0, "held-out before", _RED)
    _held_out(panel, results.after, results.steps + 1, "held-out after", _GREEN)
    _dress(panel, "final reward", "mean reward")
    values = [value for value in results.curves.get("reward", []) if value is not None]
    if all(0 <= value <= 1 for value in values):
        panel.set_ylim(-0.03, 1.03)


def _share(panel: Axes, results: Results, window: int) -> None:
    _curve(panel, results.curves.get("tool_success", []), window, "succeeded", _BLUE)
    _dress(panel, "tool calls that succeeded", "share of calls")
    panel.set_ylim(-0.03, 1.03)


def _curve(panel: Axes, values: Sequence[float | None], window: int, name: str, colour: str) -> None:
    if not values:
        return
    steps = range(1, len(values) + 1)
    raw = [np.nan if value is None else value for value in values]
    panel.plot(steps, raw, color=colour, alpha=0.28, linewidth=0.9, marker="o", markersize=1.6)
    panel.plot(steps, running_mean(values, window), color=colour, linewidth=2.0, label=name)


def _held_out(panel: Axes, held_out: HeldOut | None, step: int, name: str, colour: str) -> None:
    if held_out is None or held_out.mean is None or held_out.low is None or held_out.high is None:
        return
    below, above = held_out.mean - held_out.low, held_out.high - held_out.mean
    label = f"{name}: {held_out.mean:.3f}, 95% {held_out.low:.3f} to {held_out.high:.3f} ({held_out.num_scored} tasks)"
    panel.errorbar(
        [step], [held_out.mean], yerr=[[max(0.0, below)], [max(0.0, above)]], label=label,
        fmt="D", markersize=5, capsize=4, linewidth=1.6, color=colour, clip_on=False, zorder=3,
    )  # fmt: skip


def _dress(panel: Axes, title: str, unit: str) -> None:
    panel.set_title(title)
    panel.set_ylabel(unit)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc="best")


def _cycled(count: int) -> list[str]:
    return [_RULE_COLOURS[number % len(_RULE_COLOURS)] for number in range(count)]
