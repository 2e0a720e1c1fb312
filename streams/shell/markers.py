"""The markers of the partitions just assigned, read from their beginning to the end they have now.

In: the marker topic and partition numbers, equal to the input's. Out: chunks of records to the fold. Invariant:
returns only when every marker acknowledged before the call has been given; a commit of the former owner came after
its markers, so whatever it committed is known here. Failure: UnavailableError when the broker gives none for too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.protocol import Log, Record, TopicPartition

from .liveness import patiently

__all__ = ["read_markers"]

_CHUNK = 5_000
"""Markers folded at a time, so that the event loop stays alive."""


async def read_markers(
    log: Log, topic: str, partitions: Sequence[int], give: Callable[[Sequence[Record]], bool], *, patience_s: float
) -> int:
    """Reads them in a thread and gives them in the event loop; `give` returns False to stop. Returns their number."""
    if not partitions:
        return 0
    kept = await asyncio.to_thread(patiently, lambda: log.offsets(topic))
    starts = {TopicPartition(topic, partition): kept[partition].begin for partition in partitions}
    reader = await asyncio.to_thread(patiently, lambda: log.tail([topic], start=starts))
    num_markers, moved_at = 0, time.monotonic()
    try:
        while any(reader.positions()[where] < kept[where.partition].end for where in starts):
            markers = await asyncio.to_thread(reader.read, max_records=_CHUNK, timeout_s=0.5)
            if not give(markers):
                break
            num_markers += len(markers)
            moved_at = time.monotonic() if markers else moved_at
            if time.monotonic() - moved_at > patience_s:
                raise UnavailableError(f"expected the markers of {topic!r} up to its end, got none in {patience_s} s")
    finally:
        await asyncio.to_thread(reader.close)
    return num_markers
