"""The records of several partitions as one stream, by the time at which they were written.

In: the log, where to begin and to end in each partition. Out: records; of each partition in order, of several the
earliest first, as far as their writers' clocks go. Invariants: it ends, whatever is appended meanwhile; memory is flat,
for of each partition only what one read brought is held. Failure: a log that is away is waited for; UnavailableError
after PATIENCE_S.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing

from tracegrad.schemas.log.follow import PATIENCE_S, follow
from tracegrad.schemas.log.protocol import Log, Offsets, Record, TopicPartition

__all__ = ["merged"]

_AT_ONCE = 500


def merged(log: Log, bounds: Mapping[TopicPartition, Offsets], stop: threading.Event | None = None) -> Iterator[Record]:
    """The records in [begin, end) of each partition; fewer once `stop` is set. Blocks. Raises UnavailableError,
    LogGapError."""
    with ExitStack() as ends:
        streams = [ends.enter_context(closing(_one(log, where, bounds[where], stop))) for where in sorted(bounds)]
        yield from heapq.merge(*streams, key=lambda record: record.timestamp_ms)


def _one(
    log: Log, where: TopicPartition, bounds: Offsets, stop: threading.Event | None
) -> Generator[Record, None, None]:
    if bounds.begin >= bounds.end:
        return
    chunks = follow(
        log,
        [where.topic],
        starts={where: bounds.begin},
        partitions=[where.partition],
        max_records=_AT_ONCE,
        stop=stop,
        patience_s=PATIENCE_S,
    )
    with closing(chunks):
        for chunk in chunks:
            for record in chunk.records:
                if record.offset < bounds.end:
                    yield record
            if chunk.positions.get(where, 0) >= bounds.end:
                return
