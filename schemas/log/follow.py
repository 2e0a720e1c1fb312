"""Follows topics from where the run began on them and decodes them; append that waits for the log to come back.

In: the log, codecs by topic. Out: decoded records in order, malformed ones logged and left out (their dead letter
is the business of the stage that reads the topic as a group). Invariant: a record counts as read only when its
reader says that it was folded (`settle`). Failure: LogGapError and other fatal ones.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import OverloadedError, RecordError, UnavailableError
from ..records.codec import Codec
from .protocol import Headers, Log, LogWriter, Position, TopicPartition

__all__ = ["Tail", "append_patiently"]

_RETRY_S = 1.0

logger = logging.getLogger(__name__)


class Tail:
    """Reads all partitions of some topics without a group. One thread at a time."""

    def __init__(
        self, log: Log, codecs: Mapping[str, Codec[Any]], *, starts: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """
        Args:
            log: where to read.
            codecs: by full topic name.
            starts: where the run began on topics that it shares with others; partitions not named are read from
                their beginning.

        Raises:
            LogGapError: a start lies outside the log. Of this run's own past nothing may be missing: a rollout
                whose end was deleted would be run again.
        """
        self._codecs = codecs
        kept = {
            TopicPartition(topic, partition): offsets
            for topic in codecs
            for partition, offsets in log.offsets(topic).items()
        }
        self._ends = {where: offsets.end for where, offsets in kept.items()}
        begins = {where: (starts or {}).get(where, offsets.begin) for where, offsets in kept.items()}
        self._reader = log.tail(list(codecs), start=begins)
        self._ahead: Mapping[TopicPartition, int] = {}
        self._settled: Mapping[TopicPartition, int] = {}

    def read(self, timeout_s: float) -> Sequence[tuple[str, Any]]:
        """(topic, record) in order; empty when none came in time or the log is away."""
        try:
            records = self._reader.read(timeout_s=timeout_s)
        except UnavailableError as error:
            logger.warning("the log is away, trying again: %s", error)
            return ()
        decoded: list[tuple[str, Any]] = []
        for record in records:
            try:
                decoded.append((record.topic, self._codecs[record.topic].decode(record.value)))
            except RecordError as error:
                logger.warning("left out %s: %s", record, error.reason)
        self._ahead = self._reader.positions()
        return decoded

    def settle(self) -> None:
        """What `read` gave was folded; from now on it counts as read. Any thread, between two reads."""
        self._settled = self._ahead

    @property
    def caught_up(self) -> bool:
        """Whether all that lay on the log at the beginning was read and folded."""
        return all(self._settled.get(where, 0) >= end for where, end in self._ends.items())

    def has_read(self, position: Position) -> bool:
        """Whether the record at this position was read and folded."""
        return self._settled.get(TopicPartition(position.topic, position.partition), 0) > position.offset

    def close(self) -> None:
        """Releases the reader."""
        self._reader.close()


async def append_patiently(
    writer: LogWriter,
    topic: str,
    *,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = (),
    stop: threading.Event,
) -> Position:
    """Appends and waits for the acknowledgement, again and again while the log is away.

    Raises:
        UnavailableError: `stop` was set before the log came back.
        RecordError: the record is too large.
    """
    while True:
        try:
            return await asyncio.wrap_future(writer.append(topic, key=key, value=value, headers=headers))
        except (UnavailableError, OverloadedError) as error:
            if stop.is_set():
                raise UnavailableError(f"stopped before {topic!r} took a record") from error
            logger.warning("the log did not take a record of %r, trying again: %s", topic, error)
            await asyncio.sleep(_RETRY_S)
