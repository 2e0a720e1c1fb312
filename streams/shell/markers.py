"""The markers of the partitions just assigned, read from their beginning to the end they have now.

In: the marker topic and partition numbers, equal to the input's. Out: chunks of records to the fold. Invariant:
returns only when every marker acknowledged before the call has been given; a commit of the former owner came after
its markers, so whatever it committed is known here. Failure: UnavailableError when the broker gives none for too long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.follow import follow, in_thread
from tracegrad.schemas.log.protocol import Log, Record

__all__ = ["read_markers"]

_CHUNK = 5_000
"""Markers folded at a time, so that the event loop stays alive."""


async def read_markers(
    log: Log, topic: str, partitions: Sequence[int], give: Callable[[Sequence[Record]], bool], *, patience_s: float
) -> int:
    """Reads them in a thread and gives them in the event loop; `give` returns False to stop. Returns their number."""
    if not partitions:
        return 0
    num_markers, moved_at = 0, time.monotonic()
    steps = follow(log, [topic], partitions=partitions, poll_s=0.5, max_records=_CHUNK, patience_s=patience_s)
    async with contextlib.aclosing(in_thread(steps)) as chunks:
        async for chunk in chunks:
            if not give(chunk.records):
                break
            num_markers += len(chunk.records)
            if chunk.is_caught_up:
                break
            moved_at = time.monotonic() if chunk.records else moved_at
            if time.monotonic() - moved_at > patience_s:
                raise UnavailableError(f"expected the markers of {topic!r} up to its end, got none in {patience_s} s")
    return num_markers
