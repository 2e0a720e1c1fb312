"""What a runner writes, and what it follows of what all runners write: `rollout_events`, `rewards`, `dead_letters`.

In: events, rewards, requests that cannot be read. Out: records, and the histories that `rollout_events` tell.
Invariant: `tell` returns when the event has been read back, so that histories are the log's order and not ours: where
two runners claim one attempt number, both see the same winner. Failure: the log is away -> waits until `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping

from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.keys import original_key, rollout_key
from tracegrad.schemas.log.follow import Chunk, decoded, follow, in_thread
from tracegrad.schemas.log.protocol import Headers, Log, Position, Record, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import ATTEMPTS_BEGUN, DEAD_LETTERS, OUTCOMES, Metrics
from tracegrad.schemas.reasons import Reason, row_of
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, RolloutEvent, RolloutState
from tracegrad.schemas.retry import retry_async
from tracegrad.schemas.topics import Stage, Topic, Topics

from ..rollout_histories import Histories

_POLL_S = 0.05
_ACK_PAUSE_S = 1.0

logger = logging.getLogger(__name__)


class Journal:
    """One per runner; use from one event loop.

    Args:
        starts: where the run began on the raw topics, which it shares with others; None: at their beginning.
        stop: ends waiting for a log that is away.
    """

    def __init__(
        self,
        log: Log,
        topics: Topics,
        run: str,
        *,
        starts: Mapping[TopicPartition, int] | None,
        stop: threading.Event,
        metrics: Metrics,
    ) -> None:
        self.histories = Histories(run)
        self._topics = topics
        self._events_topic = topics.name(Topic.ROLLOUT_EVENTS)
        self._chunks = follow(log, [self._events_topic], starts=starts, poll_s=_POLL_S, stop=stop)
        self._stop = stop
        self._metrics = metrics
        self.refusals = Refusals(topics, metrics)
        """Of whatever the runner reads."""
        self._writer = log.writer()
        self._followed = Chunk((), {}, {})
        self._has_followed = asyncio.Event()

    async def follow(self, on_event: Callable[[RolloutEvent], None]) -> None:
        """Folds every runner's events until `stop` is set, and hands each one on."""
        async with contextlib.aclosing(in_thread(self._chunks)) as steps:
            async for chunk in steps:
                for _, event in decoded(chunk.records, {self._events_topic: ROLLOUT_EVENTS}, self.refusals):
                    self.histories.fold(event)
                    on_event(event)
                self._followed = chunk
                self._has_followed.set()
                self._has_followed = asyncio.Event()

    async def caught_up(self) -> None:
        """Waits until the histories hold what earlier runners wrote."""
        while not self._followed.is_caught_up:
            await self._has_followed.wait()

    async def tell(self, event: RolloutEvent) -> None:
        """Appends an event and waits until it was read back."""
        value = ROLLOUT_EVENTS.encode(event)
        position = await self._append(Topic.ROLLOUT_EVENTS, rollout_key(event.rollout_id), value)
        while not self._followed.has(position):
            await self._has_followed.wait()
        if event.state is RolloutState.STARTED:
            self._metrics.add(ATTEMPTS_BEGUN)
        else:
            self._metrics.add(OUTCOMES, event.state)

    async def reward(self, rollout_id: str, value: bytes) -> None:
        """Appends a reward."""
        await self._append(Topic.REWARDS, rollout_key(rollout_id), value)

    async def dead_letter(self, record: Record, error: ValueError) -> None:
        """Sets a request aside that cannot be read."""
        reason = getattr(error, "reason", Reason.MALFORMED)
        row = row_of(reason)
        logger.warning("dead letter: %s: %s: %s %s", record, reason, row.sentence, row.remedy)
        headers = dead_letter_headers(record, stage=Stage.RUNNER.value, reason=reason, detail=str(error))
        await self._append(Topic.DEAD_LETTERS, original_key(record), record.value, headers)
        self._metrics.add(DEAD_LETTERS, reason)

    async def _append(self, topic: Topic, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Position:
        """Waits for the acknowledgement, again and again while the log is away; once `stop` is set, raises why."""
        name = self._topics.name(topic)

        async def append() -> Position:
            return await asyncio.wrap_future(self._writer.append(name, key=key, value=value, headers=headers))

        errors = (UnavailableError, OverloadedError)
        return await retry_async(append, doing=f"appending to {name}", on=errors, stop=self._stop, max_s=_ACK_PAUSE_S)

    def close(self) -> None:
        """Releases the log."""
        self._writer.close()
