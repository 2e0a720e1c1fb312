"""What a metric is, and the registry in which a process counts its own.

In: counts and values, by metric and label. Out: `snapshot()`, plain numbers by series, for process_status; `series()`,
the same for Prometheus. Invariants: the number of series, of values of a label and the length of a value are bounded,
whoever chose them. One thread counts in a registry; any may read it.
"""

from __future__ import annotations

import msgspec

_MAX_SERIES = 1_000
"""Of one registry; beyond it new label values are counted together as `other`."""
_MAX_VALUES = 100
"""Of one label of a metric; likewise."""
_MAX_VALUE_CHARS = 100
"""Of one value, the rest is cut off: with the bounds above, what a process shows stays below a megabyte."""
_OTHER = "other"
_PREFIX = "tracegrad_"


class MetricOwner(msgspec.Struct, frozen=True):
    """Who counts the metrics that are declared below it."""

    words: str


class Metric(msgspec.Struct, frozen=True, eq=False):
    """What is counted."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    """Names of the labels; each has few values."""
    unit: str = ""
    """`records`, `bytes`, `seconds`; empty when the name says it."""
    terminal: str = ""
    """Its word on the terminal, summed over the labels; empty: not shown there."""

    @property
    def exposed(self) -> str:
        """Its name at `/metrics`."""
        suffix = f"_{self.unit}" if self.unit else ""
        return f"{_PREFIX}{self.name}{suffix}{'_total' if isinstance(self, Counter) else ''}"


class Counter(Metric, frozen=True, eq=False):
    """Only grows while the process lives."""

    is_work: bool = False
    """Whether it counts work that is done for good: what dies after some was not restarted in vain."""


class Gauge(Metric, frozen=True, eq=False):
    """What is so now."""


class Metrics:
    """The counts of one process since it started, or of one part of it."""

    def __init__(self, *, max_series: int = _MAX_SERIES) -> None:
        self.work = 0.0
        """The sum of all counters of work done."""
        self._max_series = max_series
        self._values: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self._known: dict[tuple[Metric, str], set[str]] = {}
        """Values of each label so far."""

    def add(self, counter: Counter, *labels: str, num: float = 1) -> None:
        """Counts `num` more."""
        series = self._series(counter, labels)
        self._values[series] = self._values.get(series, 0) + num
        self.work += num * counter.is_work

    def set(self, gauge: Gauge, value: float, *labels: str) -> None:
        """What is so now."""
        self._values[self._series(gauge, labels)] = float(value)

    def clear(self, gauge: Gauge) -> None:
        """Forgets every series of a gauge."""
        for series in [series for series in self._values if series[0] is gauge]:
            del self._values[series]
        for label in gauge.labels:
            self._known.pop((gauge, label), None)

    def value(self, metric: Metric, *labels: str) -> float:
        """Of one series; without labels the sum over all of the metric's."""
        if labels:
            return self._values.get((metric, labels), 0)
        return sum(value for series, value in self._values.copy().items() if series[0] is metric)

    def series(self) -> dict[Metric, dict[tuple[str, ...], float]]:
        """Metric -> values of its labels -> number, of now."""
        found: dict[Metric, dict[tuple[str, ...], float]] = {}
        # A copy is made at once, whatever other threads count.
        for (metric, labels), value in self._values.copy().items():
            found.setdefault(metric, {})[labels] = value
        return found

    def snapshot(self) -> dict[str, float]:
        """By series in order, such as `records` and `dead_letters{reason=malformed}`."""
        return dict(sorted((_text(*series), value) for series, value in self._values.copy().items()))

    def _series(self, metric: Metric, labels: tuple[str, ...]) -> tuple[Metric, tuple[str, ...]]:
        if len(labels) != len(metric.labels):
            raise ValueError(f"expected values of {metric.labels} for metric {metric.name}, got {labels}")
        series = metric, labels
        if not labels or series in self._values:
            return series
        bounded = (self._bounded(metric, *pair) for pair in zip(metric.labels, labels, strict=True))
        series = metric, tuple(bounded)
        if series not in self._values and len(self._values) >= self._max_series:
            return metric, (_OTHER,) * len(labels)
        return series

    def _bounded(self, metric: Metric, label: str, value: str) -> str:
        known, value = self._known.setdefault((metric, label), set()), value[:_MAX_VALUE_CHARS]
        if value not in known and len(known) >= _MAX_VALUES:
            return _OTHER
        known.add(value)
        return value


def _text(metric: Metric, labels: tuple[str, ...]) -> str:
    pairs = ",".join(f"{name}={value}" for name, value in zip(metric.labels, labels, strict=True))
    return f"{metric.name}{{{pairs}}}" if pairs else metric.name
