"""What is so now in a stream worker, as gauges.

In: the worker's parts. Out: its gauges in the process's metrics, for whoever takes a snapshot next. Invariant: an
assignment that ended leaves no partition behind.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.metrics import ASSIGNED, IN_FLIGHT, LAG, OPEN, OPEN_INPUTS, OPEN_RANGES, READY, Metrics

__all__ = ["measure"]


def measure(
    metrics: Metrics,
    *,
    is_ready: bool,
    assigned: Iterable[TopicPartition],
    num_open: int,
    ledger: Ledger,
    num_in_flight: int,
    lag: int,
) -> None:
    """Sets all of them. Call it from the worker's event loop."""
    metrics.set(READY, is_ready)
    metrics.set(OPEN, num_open)
    metrics.set(OPEN_INPUTS, ledger.num_open)
    metrics.set(OPEN_RANGES, ledger.num_ranges)
    metrics.set(IN_FLIGHT, num_in_flight)
    metrics.set(LAG, lag)
    metrics.clear(ASSIGNED)
    for where in assigned:
        metrics.set(ASSIGNED, 1, where.topic, str(where.partition))
