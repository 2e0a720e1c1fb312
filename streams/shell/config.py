"""Where a stream worker works: the handles that its shell needs and no fold sees.

In: compose fills them. Out: `StreamsHandles`. Invariant: plain data (JSON-able). Failure: none of its own.
"""

from __future__ import annotations

import msgspec

__all__ = ["StreamsHandles"]


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
