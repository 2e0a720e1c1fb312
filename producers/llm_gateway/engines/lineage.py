"""Follows `weights`, so that the gateway knows which version labels an engine may bear.

In: records of `weights` from the beginning. Out: the version that a label names. An undecodable
record is counted and passed over (the trainer and weight sync log theirs); a broker that is away is waited for;
a fatal error is kept in `fatal` and ends the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

from tracegrad.schemas.errors import FatalError, RecordError
from tracegrad.schemas.log.follow import follow, in_thread
from tracegrad.schemas.log.protocol import Log, Record
from tracegrad.schemas.metrics import WEIGHT_RECORDS_REFUSED, Metrics
from tracegrad.schemas.records.versions import Version, parse_label
from tracegrad.schemas.records.weights import WEIGHTS, Lineage
from tracegrad.schemas.topics import Topic, Topics

__all__ = ["KnownVersions"]

_POLL_S = 0.05


class KnownVersions:
    """The surviving versions of the policy, followed in the gateway's event loop."""

    def __init__(self, policy: str, *, topics: Topics, log: Log, metrics: Metrics) -> None:
        self.fatal: FatalError | None = None
        self._lineage = Lineage(policy)
        self._topic = topics.name(Topic.WEIGHTS)
        self._log = log
        self._metrics = metrics
        self._stop = threading.Event()
        self._changed = asyncio.Event()

    def of(self, label: str) -> Version | None:
        """The version of a label that survives in the policy's lineage; None for any other, as of another run."""
        version = parse_label(label)
        manifest = self._lineage.versions.get(version.version) if version else None
        return version if manifest is not None and manifest.label == label else None

    def folder(self) -> str | None:
        """Where the newest version lies; its tokenizer and template are every version's."""
        newest = self._lineage.newest
        return newest.uri if newest else None

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next change or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def follow(self) -> None:
        """Reads until `close`, in the event loop that `changed` is awaited in."""
        steps = follow(self._log, [self._topic], poll_s=_POLL_S, stop=self._stop)
        try:
            async with contextlib.aclosing(in_thread(steps)) as chunks:
                async for chunk in chunks:
                    if sum(self._fold(record) for record in chunk.records):
                        self._changed.set()
                        self._changed = asyncio.Event()
        except FatalError as error:
            self.fatal = error

    def close(self) -> None:
        """Ends reading, within a poll."""
        self._stop.set()

    def _fold(self, record: Record) -> bool:
        """Takes the next record; False when it changed nothing."""
        try:
            weight = WEIGHTS.decode(record.value)
        except RecordError as error:
            self._metrics.add(WEIGHT_RECORDS_REFUSED, error.reason)
            return False
        return self._lineage.fold(weight)
