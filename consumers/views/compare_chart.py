"""Two ways to reward a history as a picture: which groups have spread by each, what rules paid to whom, which episodes
change most.

In: the numbers of a comparison. Out: the bytes of an SVG or PNG file. Invariant: any numbers give a valid file, equal
numbers equal bytes of an SVG; of many groups a part is drawn, evenly, and the title says how many there are.
matplotlib is imported when a chart is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from .chart import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Compared", "draw_comparison"]

_MAX_POINTS = 4_000
"""Of groups: beyond it a file has megabytes, and points hide each other."""
_MAX_BARS = 20
_A, _B = "#4a4a4a", "#1f5fa8"


class Compared(NamedTuple):
    """What is drawn; as `streams/compare.py` finds it."""

    names: tuple[str, str]
    """Of A and of B."""
    spreads: Sequence[tuple[float, float]]
    """Of each group by A and by B."""
    paid: tuple[Mapping[str, float], Mapping[str, float]]
    most: Sequence[tuple[str, float]]
    rank_correlation: float | None


def draw_comparison(compared: Compared, form: Literal["svg", "png"]) -> bytes:
    """The file; blocking, a second with the first import."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rank = "none" if compared.rank_correlation is None else f"{compared.rank_correlation:.3f}"
    with rc_context(STYLE):
        figure = Figure(figsize=(8.0, 10.0), layout="constrained")
        figure.suptitle(
            f"A: {compared.names[0]}, B: {compared.names[1]}\n"
            f"{len(compared.spreads)} groups, rank correlation of the calls' returns {rank}"
        )
        spread, paid, most = figure.subplots(3, 1, height_ratios=[1.6, 1.0, 1.0])
        _spread(spread, compared.spreads)
        _paid(paid, compared.paid)
        _most(most, compared.most)
        data = io.BytesIO()
        figure.savefig(data, format=form, metadata={"Date": None} if form == "svg" else None)
    return data.getvalue()


def _spread(axes: Axes, spreads: Sequence[tuple[float, float]]) -> None:
    """A point a group: on an axis where one side alone has something to learn."""
    drawn = spreads[:: -(-len(spreads) // _MAX_POINTS) or 1]
    axes.set_title("spread of each group: deviation of its rollouts' mean returns")
    axes.set_xlabel("by A")
    axes.set_ylabel("by B")
    kinds = {
        "both": [one for one in drawn if one[0] and one[1]],
        "gained: B alone": [one for one in drawn if one[1] and not one[0]],
        "lost: A alone": [one for one in drawn if one[0] and not one[1]],
        "neither": [one for one in drawn if not one[0] and not one[1]],
    }
    for (kind, points), colour in zip(kinds.items(), (_B, "#2f8f5b", "#c1552b", "#b0b0b0"), strict=True):
        label = f"{kind}: {len(points)}"
        axes.scatter([x for x, _ in points], [y for _, y in points], s=14, alpha=0.5, color=colour, label=label)
    axes.axline((0.0, 0.0), slope=1.0, color="#b0b0b0", linewidth=0.8)
    axes.legend(loc="upper left")


def _paid(axes: Axes, paid: tuple[Mapping[str, float], Mapping[str, float]]) -> None:
    names = sorted({*paid[0], *paid[1]}, key=lambda name: (-max(abs(one.get(name, 0.0)) for one in paid), name))
    names = names[:_MAX_BARS]
    axes.set_title("what each rule paid to whom, in all")
    places = range(len(names))
    for offset, label, own, colour in ((-0.2, "A", paid[0], _A), (0.2, "B", paid[1], _B)):
        axes.barh(
            [place + offset for place in places], [own.get(name, 0.0) for name in names], 0.4, label=label, color=colour
        )
    axes.set_yticks(list(places), [_plain(name) for name in names])
    axes.invert_yaxis()
    axes.legend(loc="best")


def _most(axes: Axes, most: Sequence[tuple[str, float]]) -> None:
    axes.set_title("episodes that change most: change of a call's return")
    axes.barh(range(len(most)), [change for _, change in most], 0.6, color=_B)
    axes.set_yticks(list(range(len(most))), [_plain(id_) for id_, _ in most], family="monospace")
    axes.invert_yaxis()


def _plain(text: str) -> str:
    """Without what matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
