"""Other runs laid over one: their curves in its charts, and how their configurations differ.

In: this run's charts and settings; of each other run what its page left. Out: charts whose series share one axis
again; rows of (key, this, those). Invariants: pure; a run that has no curves is named with the reason; of settings the
text is cut. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tracegrad.schemas.ids import RunName
from tracegrad.schemas.topics import Topics

from ..views.held_out import held_out_of
from ..views.run_state import RunState
from .asked import Beside, Other
from .charts import Chart, Charts, Series, Values, charts_of
from .kept import Kept, folded

__all__ = ["MAX_OTHERS", "Difference", "chosen", "differences", "laid_over", "other_of"]

MAX_OTHERS = 4
_HUES = (2, 4, 5, 8)
"""Of each other run, by its place: none is a colour of the run's own reward."""
_MAX_TEXT = 300
_NOT_TOLD = frozenset({"run", "about"})
"""Keys of the settings that say which run it is."""
_ABSENT = "-"


class Difference(NamedTuple):
    """A setting that is not the same everywhere."""

    key: str
    this: str
    those: list[str]


def other_of(name: str, kept: Kept, reason: str = "") -> Other:
    """A run of what its page left."""
    policy = kept.settings.get("policy")
    named = str(policy.get("name")) if isinstance(policy, Mapping) else ""
    topics = Topics(run=RunName(name))
    state = RunState(topics, kept.run, named)
    for record in folded(kept, topics):
        state.fold(record, 0.0)
    by_number = state.held_out.by_number
    passes = [one for number in sorted(by_number) if (one := held_out_of(by_number[number])) is not None]
    return Other(name, tuple(state.steps), passes, kept.settings, reason)


def chosen(asked: str, beside: Beside | None) -> list[Other]:
    """Those that a URL names, in its order; blocks."""
    names = [name for name in dict.fromkeys(asked.split(",")) if name][:MAX_OTHERS]
    known = set(beside.names()) if beside is not None and names else set()
    return [
        beside.find(name)
        if beside is not None and name in known
        else Other(name[:100], reason="no other run of that name lies in this run's folder of runs")
        for name in names
    ]


def laid_over(own: Charts, others: Sequence[Other]) -> Charts:
    """The run's charts with the same lines of others, dashed. What is stacked shows this run alone."""
    theirs = [(other.name, charts_of(other.steps, other.passes)) for other in others]
    axis = sorted({*own.steps, *(step for _, of in theirs for step in of.steps)})
    return msgspec.structs.replace(
        own, steps=axis, charts=[_one(chart, own.steps, axis, theirs) for chart in own.charts]
    )


def _one(chart: Chart, steps: Sequence[float], axis: Sequence[float], theirs: Sequence[tuple[str, Charts]]) -> Chart:
    if chart.is_stacked:
        return msgspec.structs.replace(chart, steps=list(steps))
    series = [_on(one, steps, axis) for one in chart.series]
    for (name, of), hue in zip(theirs, _HUES, strict=False):
        same = next((other for other in of.charts if other.id == chart.id), None)
        for one in same.series if same is not None else ():
            if one.form != "faint":
                form = one.form if one.form == "points" else "over"
                series.append(_on(one, of.steps, axis, name=f"{name}: {one.name}", form=form, hue=hue))
    return msgspec.structs.replace(chart, series=series)


def _on(series: Series, steps: Sequence[float], axis: Sequence[float], **changed: Any) -> Series:
    """On another axis, which has all its steps."""

    def moved(values: Values) -> list[float | None]:
        at = dict(zip(steps, values, strict=True)) if values else {}
        return [at.get(step) for step in axis] if values else []

    return msgspec.structs.replace(
        series, values=moved(series.values), low=moved(series.low), high=moved(series.high), **changed
    )


def differences(this: Mapping[str, Any], others: Sequence[Other]) -> list[Difference]:
    """Settings in which one of those that are known is not like this run's, by key."""
    flat = [dict(_flat(settings)) for settings in (this, *(one.settings for one in others))]
    found = []
    for key in sorted({key for one in flat for key in one}):
        if len({one.get(key) for one in flat if one}) > 1:
            texts = [one.get(key, _ABSENT) for one in flat]
            found.append(Difference(key, texts[0], texts[1:]))
    return found


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if not before and key in _NOT_TOLD:
            continue
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{before}{key}.")
        else:
            text = inner if isinstance(inner, str) else msgspec.json.encode(inner).decode()
            yield f"{before}{key}", text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."
