"""Reads a topic from its first record to the end it had when asked; the way every count and report reads.

In: a Log and a topic's full name. Out: records, in order within each partition. Invariant: it ends, whatever is
appended meanwhile. Failure: UnavailableError when nothing comes for `patience_s` before the end is reached.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ..errors import UnavailableError
from .protocol import Log, Record, TopicPartition

__all__ = ["read_topic"]


def read_topic(
    log: Log, topic: str, *, start: Mapping[TopicPartition, int] | None = None, patience_s: float = 30.0
) -> Iterator[Record]:
    """The records of a topic up to its present end.

    Args:
        log: where to read.
        topic: its full name.
        start: first offsets by partition; a partition that is not named is read from its beginning.
        patience_s: seconds without any record before it gives up.
    """
    kept = log.offsets(topic)
    wanted = start or {}
    starts = {
        where: max(offsets.begin, min(wanted.get(where, offsets.begin), offsets.end))
        for partition, offsets in kept.items()
        if (where := TopicPartition(topic, partition))
    }
    ends = {TopicPartition(topic, partition): offsets.end for partition, offsets in kept.items()}
    left = {where for where, first in starts.items() if first < ends[where]}
    if not left:
        return
    reader = log.tail([topic], start={where: starts[where] for where in left})
    try:
        silent_since = time.monotonic()
        while left:
            records = reader.read(max_records=2_000, timeout_s=0.2)
            if records:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > patience_s:
                raise UnavailableError(f"expected the end of {topic}, got nothing for {patience_s:g} s; is Kafka up?")
            for record in records:
                if record.offset < ends[TopicPartition(topic, record.partition)]:
                    yield record
            # Compacted records leave holes, so the reader's position tells, not the last offset seen.
            positions = reader.positions()
            left = {where for where in left if positions.get(where, 0) < ends[where]}
    finally:
        reader.close()
