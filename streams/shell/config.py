"""Where a stream worker works, and how long it waits: what its shell needs and no fold sees.

In: compose fills the handles; tests wait less. Out: `StreamsHandles`, `WorkerWaits`.
Invariant: plain data (JSON-able). Failure: none of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class StreamsHandles(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker of a run works."""

    bootstrap_servers: str
    """Kafka's `host:port[,host:port]`."""
    kafka: dict[str, str] = {}
    """Security settings of the user's cluster (`security.protocol`, `sasl.*`, `ssl.*`)."""
    data_dir: str
    """Folder that a run's workers share: poison list, lives, Faust's own files; made when it is missing."""
    instance_id: str | None = None
    """Static group membership (an ordinal from the launcher); None: a dynamic member."""
    partitions: int
    """Of `episode_events`, `episodes` and the `closed_*` topics; checked at start."""


class WorkerWaits(NamedTuple):
    """Seconds between what a worker does again and again, and those that its end may take."""

    commit_s: float = 1.0
    """Between commits of the low-water marks."""
    propose_s: float = 0.5
    """Between looks for due close proposals."""
    measure_s: float = 1.0
    """Between gauges."""
    liveness_s: float = 5.0
    """Between looks at what is on the log."""
    poll_s: float = 0.05
    """Between looks at whether to stop."""
    drain_s: float = 10.0
    """At a clean stop, how long emissions in flight may take; what is left comes again."""
    stop_s: float = 15.0
    """For Faust's app to start or stop then, and a third of it for the last commit."""
    session_s: float = 10.0
    """Kafka session: how long a killed worker's partitions stand still at most."""


WAITS = WorkerWaits()
"""Of a run."""
