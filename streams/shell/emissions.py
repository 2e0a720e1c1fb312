"""Emissions on their way: outputs acknowledged, then the marker acknowledged, then the inputs are done.

In: what a fold step led to. Out: appended records, and `Ledger.done` in that order. Invariants: a marker is handed to
the broker only when every output of its emission is acknowledged; an input is done only after both, and after those of
all emissions before: what counted in one may be let go by the next; work of a former assignment writes no marker and
acknowledges nothing. Bounds: emissions and bytes in flight; at a bound `emit` waits,
so that reading waits. Failure: an append that fails (the broker was away too long) ends `run` with its error, and the
inputs stay open; an output too large for the topic becomes a dead letter by reference. One event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from tracegrad.schemas.errors import OverloadedError, RecordError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.protocol import LogWriter, Position, Record
from tracegrad.schemas.metrics import DEAD_LETTERS, OUTPUTS, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.topics import Stage, Topic, Topics

from ..stage_fold import dead_letter

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 1_000
"""Emissions that wait for acknowledgement; at the bound, reading waits."""
MAX_BYTES_IN_FLIGHT = 64 * 1024 * 1024
"""Of outputs not yet acknowledged; large episodes reach it before the bound on their number."""


@dataclass(slots=True)
class _InFlight:
    """One emission and the appends that it waits for."""

    emission: Emission
    record: Record
    epoch: int
    begun_at: float
    num_bytes: int = 0
    futures: list[tuple[Output, Future[Position]]] = field(default_factory=list)


@dataclass(kw_only=True)
class Emissions:
    """What has been handed to the broker and is not acknowledged yet, in order."""

    writer: LogWriter
    topics: Topics
    ledger: Ledger
    stage: Stage
    """Named in dead letters."""
    metrics: Metrics
    max_in_flight: int = MAX_IN_FLIGHT
    before_marker: Callable[[], None] = lambda: None
    """Called between an emission's last acknowledged output and its marker."""
    pause_s: float = 0.05
    """Before another try where the writer's queue is full."""
    look_s: float = 0.002
    """Acknowledgements are looked for this often: waking the event loop from the writer's thread costs more."""
    num_in_flight: int = 0
    """Emissions whose inputs are not done yet."""
    _num_bytes: int = 0
    _outputs: deque[_InFlight] = field(default_factory=deque)
    _markers: deque[_InFlight] = field(default_factory=deque)
    _has_work: asyncio.Event = field(default_factory=asyncio.Event)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._names = {topic: self.topics.name(topic) for topic in Topic}
        self._loop = asyncio.get_running_loop()
        self._has_room.set()

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest emission in flight has waited for its acknowledgements; 0 when none does."""
        oldest = self._markers[0] if self._markers else self._outputs[0] if self._outputs else None
        return self._loop.time() - oldest.begun_at if oldest is not None else 0.0

    async def emit(self, emission: Emission, record: Record, *, epoch: int) -> None:
        """Hands an emission's outputs to the broker; waits at the bounds. Void when `epoch` ends meanwhile."""
        if not emission.outputs and emission.marker is None and not (emission.done and self.num_in_flight):
            self.ledger.done(emission.done, epoch=epoch)
            return
        while not self._has_room.is_set():
            await self._has_room.wait()
        if epoch != self.ledger.epoch:
            return
        item = _InFlight(emission, record, epoch, self._loop.time())
        for output in emission.outputs:
            future = await self.append(output)
            item.futures.append((output, future))
            item.num_bytes += len(output.value)
        self._num_bytes += item.num_bytes
        self.num_in_flight += 1
        self._outputs.append(item)
        self._has_work.set()
        if self.num_in_flight >= self.max_in_flight or self._num_bytes >= MAX_BYTES_IN_FLIGHT:
            self._has_room.clear()

    async def append(self, output: Output) -> Future[Position]:
        """Appends one record, waiting while the writer's queue is full.

        By a loop of its own: each record passes here, and `retry_async` takes 130 us before its first try.
        """
        topic = output.topic
        self.metrics.add(OUTPUTS, topic.value)
        if topic is Topic.DEAD_LETTERS:
            self.metrics.add(DEAD_LETTERS, dead_letter_fields(output.headers)["reason"])
        while True:
            try:
                return self.writer.append(
                    self._names[topic],
                    key=output.key,
                    value=output.value,
                    headers=output.headers,
                    partition=output.partition,
                )
            except OverloadedError:
                await asyncio.sleep(self.pause_s)

    async def run(self) -> None:
        """Follows the acknowledgements until cancelled. Raises what an append failed with."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self.num_in_flight:
                await asyncio.sleep(self.look_s)
                await self._advance()

    async def drain(self, timeout_s: float) -> bool:
        """Waits until nothing is in flight. False: time ran out, and the rest will come again."""
        deadline = self._loop.time() + timeout_s
        while self.num_in_flight:
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _advance(self) -> None:
        outputs, markers = self._outputs, self._markers
        while outputs and all(future.done() for _, future in outputs[0].futures):
            item = outputs[0]
            if not await self._check(item):
                break
            outputs.popleft()
            self._num_bytes -= item.num_bytes
            item.futures = []
            if item.emission.marker is not None and item.epoch == self.ledger.epoch:
                self.before_marker()
                item.futures = [(item.emission.marker, await self.append(item.emission.marker))]
            markers.append(item)
        while markers and all(future.done() for _, future in markers[0].futures):
            item = markers.popleft()
            for _, future in item.futures:
                future.result()
            self._finish(item)
        if self.num_in_flight < self.max_in_flight and self._num_bytes < MAX_BYTES_IN_FLIGHT:
            self._has_room.set()

    def _finish(self, item: _InFlight) -> None:
        self.num_in_flight -= 1
        self.ledger.done(item.emission.done, epoch=item.epoch)

    async def _check(self, item: _InFlight) -> bool:
        """Raises what an append failed with. False: a dead letter took an output's place and is on its way."""
        replaced = False
        for index, (output, future) in enumerate(item.futures):
            error = future.exception()
            if error is None:
                continue
            if not isinstance(error, RecordError) or (output.topic is Topic.DEAD_LETTERS and not output.value):
                raise error
            if output.topic is Topic.DEAD_LETTERS:
                letter = msgspec.structs.replace(output, value=b"")
            else:
                unwritable = RecordError(str(error), reason=f"{Reason.UNWRITABLE}_{output.topic.value}")
                letter = dead_letter(item.record, unwritable, stage=self.stage, value=b"")
            item.futures[index] = (letter, await self.append(letter))
            replaced = True
        return not replaced
