"""What a process has counted, as Prometheus reads it.

In: its Metrics, read at the scrape and kept nowhere else. Out: text. Invariants: a label's value is text whatever bytes
it was made of; below a megabyte, by the bounds of the registry. Failure: none. Loaded at the first scrape: who is not
scraped does not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tracegrad.schemas.metrics import Counter, Metrics


class _Counted(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for metric, series in self._metrics.series().items():
            kind = CounterMetricFamily if isinstance(metric, Counter) else GaugeMetricFamily
            family = kind(metric.exposed, metric.help, labels=metric.labels)
            for labels, value in series.items():
                # A lone surrogate, which JSON can spell, has no bytes.
                family.add_metric([label.encode("utf-8", "replace").decode() for label in labels], value)
            yield family


def exposition(metrics: Metrics) -> bytes:
    """The text of now, with what the system says of the process: CPU seconds, memory, files."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Counted(metrics))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
