"""Follows `weights`, so that the gateway knows which version labels an engine may bear.

In: records of `weights` from the beginning, read by a thread of its own. Out: `known(policy, label)`. An undecodable
record is counted and passed over (the trainer and weight sync log theirs); a broker that is away is waited for;
a fatal error is kept in `fatal` and ends the gateway.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter

from tracegrad.schemas.errors import FatalError, RecordError, UnavailableError
from tracegrad.schemas.log.protocol import Log, LogReader, Record
from tracegrad.schemas.records.versions import Version, parse_label
from tracegrad.schemas.records.weights import WEIGHTS, Lineage
from tracegrad.schemas.topics import Topic, Topics

__all__ = ["LineageTail", "Lineages"]

_LOGGER = logging.getLogger(__name__)
_POLL_S = 0.05
_RETRY_S = 1.0


class Lineages:
    """The surviving versions of each policy. Written by one thread, read by another."""

    def __init__(self, policies: tuple[str, ...]) -> None:
        self._of = {policy: Lineage(policy) for policy in policies}
        self.counters: Counter[str] = Counter()

    def fold(self, record: Record) -> bool:
        """Takes the next record; False when it changed nothing."""
        try:
            weight = WEIGHTS.decode(record.value)
        except RecordError as error:
            self.counters[f"weights_{error.reason}"] += 1
            return False
        lineage = self._of.get(weight.policy)
        return lineage is not None and lineage.fold(weight)

    def known(self, policy: str, label: str) -> Version | None:
        """The version of a label that survives in the policy's lineage; None for any other, as of another run."""
        version = parse_label(label)
        lineage = self._of.get(policy)
        if version is None or lineage is None:
            return None
        manifest = lineage.versions.get(version.version)
        return version if manifest is not None and manifest.label == label else None

    def folder(self, policy: str) -> str | None:
        """Where the newest version of a policy lies; its tokenizer and template are every version's."""
        lineage = self._of.get(policy)
        newest = lineage.newest if lineage else None
        return newest.uri if newest else None


class LineageTail:
    """The thread that reads `weights`."""

    def __init__(self, lineages: Lineages, *, topics: Topics, log: Log) -> None:
        self.lineages = lineages
        self.fatal: FatalError | None = None
        self._topic = topics.name(Topic.WEIGHTS)
        self._log = log
        self._stop = threading.Event()
        self._changed: asyncio.Event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._follow, name="weights-tail", daemon=True)

    def start(self) -> None:
        """Begins to read; call it in the event loop that `changed` is awaited in."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Ends the thread, within a poll."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 10.0)

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next change or after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _follow(self) -> None:
        reader: LogReader | None = None
        while not self._stop.is_set():
            try:
                reader = reader or self._log.tail([self._topic])
                for record in reader.read(timeout_s=_POLL_S):
                    if self.lineages.fold(record):
                        self._loop.call_soon_threadsafe(self._announce)
            except UnavailableError as error:
                _LOGGER.warning("weights cannot be read now, trying again: %s", error)
                self._stop.wait(_RETRY_S)
            except FatalError as error:
                self.fatal = error
                return
            except RuntimeError:  # the event loop is closed: the gateway ends
                break
        if reader is not None:
            reader.close()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
