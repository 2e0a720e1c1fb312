"""The Faust shell around a fold: one stage, one app, one consumer group, one process.

    Faust event -> generation check -> ledger.deliver -> fold -> outputs acked -> marker acked -> ledger.done
                                                                                timer: commit the low-water mark

In: the input topics of a stage. Out: what its fold emits, through the LogWriter. Invariants: the committed offset
never passes a record whose effect is not on the log; before the first event of an assignment the ledger and the fold
are empty and the markers of the assigned partitions are read to their end; while the broker is slow, reading waits.
Failure: whatever goes wrong ends the process without acknowledging anything more, so that the open inputs come again;
FatalError means that a restart would not help. Not to be combined with a second fold in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracegrad.schemas.errors import RecordError, UnavailableError
from tracegrad.schemas.fold import Emission, Fold
from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.protocol import Headers, Log, LogWriter, Position, Record, TopicPartition
from tracegrad.schemas.metrics import COMMITS, DELIVERIES_DROPPED, OFFSETS_WITHOUT_RECORD, RECORDS, Metrics
from tracegrad.schemas.topics import INPUTS, Stage, Topics

from ..config import StreamRules, StreamsHandles
from ..dead_letter import dead_letter
from ..folds import build_fold
from .emissions import Emissions, Failpoint
from .faust_app import FaustSeam
from .gauges import measure
from .instance import PoisonList, file_name, hold_instance
from .liveness import Jumps, Liveness, check_partitions, group_starts, patiently
from .markers import read_markers

__all__ = ["run", "run_fold"]

logger = logging.getLogger(__name__)

COMMIT_INTERVAL_S = 1.0
"""Between commits of the low-water marks."""
_PROPOSE_INTERVAL_S = 0.5
"""Between looks for due close proposals."""
_ACK_TIMEOUT_S = 30.0
"""An output not acknowledged by then ends the worker, which is then restarted."""
_MAX_IN_FLIGHT = 1_000
"""Emissions that wait for acknowledgement; at the bound, reading waits."""
_STALL_S = 60.0
"""A delivered position that stands still this long under lag ends the worker."""
_GAUGES_INTERVAL_S = 1.0
_LIVENESS_INTERVAL_S = 5.0
_STOP_POLL_S = 0.05
_DRAIN_S = 10.0
"""At a clean stop, how long emissions in flight may take; what is left comes again."""
_STOP_S = 15.0
_COMMIT_S = 5.0
FAILPOINT_VARIABLE = "TRACEGRAD_FAILPOINT"


def run(
    rules: StreamRules,
    handles: StreamsHandles,
    *,
    stage: Stage,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
) -> None:
    """Runs a stage until `stop` is set; then drains, commits and leaves the group.

    Raises:
        FatalError: a gap in the log, wrong partitions, an instance id in use: do not restart.
        TracegradError, Exception: anything else: restart, and the open inputs come again.
    """
    fold = build_fold(stage, rules, topics, metrics)
    run_fold(fold, handles, stage=stage, topics=topics, log=log, stop=stop, metrics=metrics)


def run_fold(
    fold: Fold,
    handles: StreamsHandles,
    *,
    stage: Stage,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
) -> None:
    """`run` with a fold at hand; the stage gives the inputs and the consumer group."""
    data_dir = Path(handles.data_dir)
    data_dir.mkdir(parents=True, exist_ok=True)
    inputs = tuple(topics.name(topic) for topic in INPUTS[stage])
    with hold_instance(data_dir, stage, handles.instance_id):
        if fold.marker_topic is not None:
            equal = (*inputs, topics.name(fold.marker_topic))
            patiently(lambda: check_partitions(log, equal, handles.partitions))
        patiently(lambda: group_starts(log, topics.group(stage), inputs))
        writer = log.writer()
        try:
            asyncio.run(_serve(lambda: _Worker(fold, handles, stage, topics, log, writer, metrics), stop))
        finally:
            writer.close()


async def _serve(worker: Callable[[], _Worker], stop: threading.Event) -> None:
    """Makes the worker inside its event loop, as Faust wants it."""
    await worker().serve(stop)


class _Worker:
    """The state of one process; everything but the blocking reads runs in its one event loop."""

    def __init__(
        self,
        fold: Fold,
        handles: StreamsHandles,
        stage: Stage,
        topics: Topics,
        log: Log,
        writer: LogWriter,
        metrics: Metrics,
    ) -> None:
        self._fold = fold
        self._stage = stage
        self._log = log
        self._metrics = metrics
        self._jumps = Jumps(log)
        self._marker_topic = topics.name(fold.marker_topic) if fold.marker_topic is not None else None
        data_dir = Path(handles.data_dir)
        self._poison = PoisonList(data_dir, stage)
        self._seam = FaustSeam(
            handles,
            group=topics.group(stage),
            inputs=[topics.name(topic) for topic in INPUTS[stage]],
            datadir=data_dir / "faust" / file_name(f"{stage.value}-{handles.instance_id or os.getpid()}"),
        )
        self._ledger = Ledger()
        failpoint = Failpoint(os.environ.get(FAILPOINT_VARIABLE), data_dir / "failpoints" / stage.value)
        self._emissions = Emissions(
            writer,
            topics,
            self._ledger,
            stage=stage,
            metrics=metrics,
            max_in_flight=_MAX_IN_FLIGHT,
            failpoint=failpoint,
        )
        self._liveness = Liveness(log, stall_s=_STALL_S)
        self._lag: Mapping[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}
        """Where each assigned partition began in this epoch."""
        self._is_ready = False
        self._is_closing = False
        self._folding: Position | None = None
        self._started = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, stop: threading.Event) -> None:
        """Until `stop` is set or something fails, which it raises."""
        self._seam.consume(self._on_message, self._on_agent_end)
        self._seam.on_rebalance(revoked=self._on_revoked, complete=self._on_rebalance_complete)
        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("stop", self._until(stop)),
                ("app", self._run_app()),
                ("emissions", self._emissions.run()),
                ("commit", _every(COMMIT_INTERVAL_S, self._commit)),
                ("propose", _every(_PROPOSE_INTERVAL_S, self._propose)),
                ("liveness", _every(_LIVENESS_INTERVAL_S, self._check_liveness)),
                ("gauges", _every(_GAUGES_INTERVAL_S, self._measure)),
            )
        ]
        is_clean = False
        try:
            done, _ = await asyncio.wait([*tasks, self._failure], return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
            is_clean = True
        finally:
            await self._close(is_clean, tasks)

    async def _until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            reason = self._seam.crash_reason
            if reason is not None:
                raise UnavailableError(f"expected the Faust app to run, got its crash: {reason!r}") from reason
            await asyncio.sleep(_STOP_POLL_S)

    async def _run_app(self) -> None:
        await self._seam.app.start()
        self._started.set()
        await self._failure

    async def _close(self, is_clean: bool, tasks: list[asyncio.Task[None]]) -> None:
        """Clean: what is in flight is acknowledged and committed first, and the group is left at once."""
        self._is_closing = True
        if is_clean and not await self._emissions.drain(_DRAIN_S):
            logger.warning("streams %s: %d emissions still in flight", self._stage, self._emissions.num_in_flight)
        if is_clean:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._commit(), _COMMIT_S)
        if is_clean:
            # An app that is stopped in the midst of its start leaves threads behind.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._started.wait(), _STOP_S)
        if not await self._seam.stop(leave=is_clean, timeout_s=_STOP_S):
            logger.warning("streams %s: the Faust app did not stop within %s s", self._stage, _STOP_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The data's path.

    async def _on_message(self, message: Any) -> None:
        if self._is_closing or not self._is_ready or not self._seam.is_current(message):
            self._metrics.add(DELIVERIES_DROPPED, "stale")
            return
        epoch = self._ledger.epoch
        where = TopicPartition(message.topic, message.partition)
        expected = self._ledger.next_offset(where)
        if expected is None:
            expected = self._starts.get(where, message.offset)
        if message.offset > expected:
            await self._judge_jump(where, expected, message.offset)
            if epoch != self._ledger.epoch:
                return
        if not self._ledger.deliver(message.topic, message.partition, message.offset):
            self._metrics.add(DELIVERIES_DROPPED, "again")
            return
        record = _record(message)
        self._folding = record.position
        emission = self._poison_letter(record) if record.position in self._poison else self._fold.fold(record)
        self._folding = None
        self._metrics.add(RECORDS)
        await self._emissions.emit(emission, record, epoch=epoch)

    async def _judge_jump(self, where: TopicPartition, expected: int, delivered: int) -> None:
        await asyncio.to_thread(self._jumps.refuse_skipped, where, expected=expected, delivered=delivered)
        self._metrics.add(OFFSETS_WITHOUT_RECORD, num=delivered - expected)
        logger.debug("streams %s: no records at %s[%d]@%d..%d", self._stage, *where, expected, delivered - 1)

    def _poison_letter(self, record: Record) -> Emission:
        error = RecordError("expected folding to end, got the process's end several times", reason="poison")
        letter = dead_letter(record, error, stage=self._stage)
        return Emission(outputs=(letter,), done=(record.position,))

    def _on_agent_end(self, error: BaseException | None) -> None:
        if self._folding is not None and error is not None:
            count = self._poison.add(self._folding)
            logger.error("streams %s: folding %s failed, time %d", self._stage, self._folding, count)
        self._fail(error or UnavailableError("expected the Faust agent to run, got its end"))

    def _fail(self, error: BaseException) -> None:
        """Ends `serve` with the error."""
        if not self._is_closing and not self._failure.done():
            self._failure.set_exception(error)

    # Assignments.

    async def _on_revoked(self, *_: Any, **__: Any) -> None:
        self._reset()

    async def _on_rebalance_complete(self, *_: Any, **__: Any) -> None:
        epoch = self._reset()
        try:
            await self._take_over(epoch)
        except asyncio.CancelledError:
            self._fail(UnavailableError("expected the markers of the new partitions to be read, got a cancellation"))
            raise
        except Exception as error:
            # Faust would log it and go on without the markers.
            self._fail(error)

    def _reset(self) -> int:
        self._is_ready = False
        self._starts = {}
        self._lag = {}
        self._fold.reset()
        return self._ledger.reset()

    async def _take_over(self, epoch: int) -> None:
        """Reads what must be known before the first event. Void when the next rebalance begins meanwhile."""
        began = time.monotonic()
        assigned = set(self._seam.assignment())
        inputs = sorted({where.topic for where in assigned})
        starts = await asyncio.to_thread(patiently, lambda: group_starts(self._log, self._seam.group, inputs))
        num_markers = 0
        if self._marker_topic is not None:
            num_markers = await read_markers(
                self._log,
                self._marker_topic,
                sorted({where.partition for where in assigned}),
                lambda markers: self._restore(markers, epoch),
                patience_s=_STALL_S,
            )
        if epoch != self._ledger.epoch:
            return
        self._poison.load()
        self._starts = {where: start for where, start in starts.items() if where in assigned}
        self._is_ready = True
        logger.info(
            "streams %s: epoch %d, %d partitions, %d markers read in %.2f s",
            self._stage,
            epoch,
            len(assigned),
            num_markers,
            time.monotonic() - began,
        )

    def _restore(self, markers: Sequence[Record], epoch: int) -> bool:
        if epoch != self._ledger.epoch:
            return False
        self._fold.restore(markers)
        return True

    # Timers.

    async def _commit(self) -> None:
        if not self._is_ready or self._seam.is_rebalancing:
            return
        epoch, marks = self._ledger.epoch, self._ledger.committable()
        if not marks:
            return
        # Without a broker this waits, and Faust keeps trying; a second commit beside it would block the fetches too.
        if await self._seam.commit(marks):
            self._ledger.committed(marks, epoch=epoch)
            self._metrics.add(COMMITS)

    async def _propose(self) -> None:
        if not self._is_ready or self._is_closing:
            return
        futures = [await self._emissions.append(output) for output in self._fold.propose(time.monotonic())]
        timeout_s = _ACK_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                for future in futures:
                    await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise UnavailableError(f"expected proposals acknowledged within {timeout_s} s, got no answer") from error

    async def _check_liveness(self) -> None:
        age_s = self._emissions.oldest_age_s
        if age_s > _ACK_TIMEOUT_S:
            raise UnavailableError(f"expected an acknowledgement within {_ACK_TIMEOUT_S} s, got {age_s:.0f}")
        positions = None
        epoch = self._ledger.epoch
        if self._is_ready:
            positions = {where: self._ledger.next_offset(where) or start for where, start in self._starts.items()}
        lag = await asyncio.to_thread(self._liveness.check, positions, time.monotonic())
        if epoch == self._ledger.epoch:
            self._lag = lag

    async def _measure(self) -> None:
        measure(
            self._metrics,
            is_ready=self._is_ready,
            assigned=self._starts,
            num_open=self._fold.num_open,
            ledger=self._ledger,
            num_in_flight=self._emissions.num_in_flight,
            lag=sum(self._lag.values()),
        )


async def _every(interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await work()


def _record(message: Any) -> Record:
    """The log's record of a Faust message; Faust's own event would keep one header of each name only."""
    given = message.headers
    headers: Headers = tuple(given.items() if isinstance(given, Mapping) else given) if given else ()
    return Record(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=headers,
        timestamp_ms=round(message.timestamp * 1000) if message.timestamp else 0,
    )
