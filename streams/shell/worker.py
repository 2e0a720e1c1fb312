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
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.fold import Fold
from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.protocol import AWAY_S, Log, LogWriter
from tracegrad.schemas.metrics import ASSIGNED, COMMITS, IN_FLIGHT, LAG, OPEN, READY, Metrics
from tracegrad.schemas.retry import retry
from tracegrad.schemas.topics import INPUTS, Topics

from .assignment import Assignment
from .config import WAITS, StreamsHandles, WorkerWaits
from .emissions import Emissions
from .faust_app import FaustSeam
from .liveness import Liveness, check_partitions, group_starts
from .poison import PoisonList

logger = logging.getLogger(__name__)


def run_fold(
    fold: Fold,
    handles: StreamsHandles,
    *,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
    before_marker: Callable[[], None] = lambda: None,
    waits: WorkerWaits = WAITS,
) -> None:
    """Runs a fold until `stop` is set; then drains, commits and leaves the group.

    The fold's stage gives the inputs and the consumer group. `before_marker` is called when an emission's outputs are
    acknowledged and its marker is not sent yet: the worst moment to die in.

    Raises:
        FatalError: a gap in the log, wrong partitions: do not restart.
        TracegradError, Exception: anything else: restart, and the open inputs come again.
    """
    Path(handles.data_dir).mkdir(parents=True, exist_ok=True)
    inputs = [topics.name(topic) for topic in INPUTS[fold.stage]]

    def check() -> None:
        if fold.marker_topic is not None:
            check_partitions(log, (*inputs, topics.name(fold.marker_topic)), handles.partitions)
        group_starts(log, topics.group(fold.stage), inputs)

    async def serve() -> None:
        # Faust wants what it works in to be made inside its event loop.
        await _Worker(fold, handles, topics, log, writer, metrics, before_marker, waits).serve(stop)

    retry(check, doing="checking topics and offsets", patience_s=AWAY_S)
    with closing(log.writer()) as writer:
        asyncio.run(serve())


class _Worker:
    """One process from its start to its end; everything but the blocking reads runs in its one event loop.

    The order of events keeps the invariants, so nothing below may be swapped:

    - What fails ends `serve` by its task or by `_failure`, never by Faust, which would log it and go on.
    - A clean stop drops new messages first, then waits for the emissions in flight, then commits, and only then stops
      the app: a commit before the last acknowledgement would make those inputs come again, and a stopped app commits
      nothing. The app is let start first, for one that is stopped in the midst of its start leaves threads behind.
    - The tasks are cancelled last: the drain needs the one that follows acknowledgements.
    - After a failure nothing is drained, committed or left: the open inputs come again to whoever is next, and a static
      member's partitions wait for the restart instead of moving twice.
    """

    def __init__(
        self,
        fold: Fold,
        handles: StreamsHandles,
        topics: Topics,
        log: Log,
        writer: LogWriter,
        metrics: Metrics,
        before_marker: Callable[[], None],
        waits: WorkerWaits = WAITS,
    ) -> None:
        self._fold = fold
        self._waits = waits
        self._metrics = metrics
        self._seam = FaustSeam(handles, stage=fold.stage, topics=topics, session_s=waits.session_s)
        self._ledger = Ledger()
        self._emissions = Emissions(
            writer=writer,
            topics=topics,
            ledger=self._ledger,
            stage=fold.stage,
            metrics=metrics,
            before_marker=before_marker,
        )
        self._liveness = Liveness(log)
        self._assignment = Assignment(
            fold=fold,
            topics=topics,
            log=log,
            seam=self._seam,
            ledger=self._ledger,
            emissions=self._emissions,
            metrics=metrics,
            poison=PoisonList(Path(handles.data_dir), fold.stage, worker=handles.instance_id),
            liveness=self._liveness,
            fail=self._fail,
        )
        self._started = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, stop: threading.Event) -> None:
        """Until `stop` is set or something fails, which it raises."""
        self._seam.consume(self._assignment.on_message, self._assignment.on_agent_end)
        self._seam.on_rebalance(revoked=self._assignment.on_revoked, complete=self._assignment.on_rebalance_complete)
        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("stop", self._until(stop)),
                ("app", self._run_app()),
                ("emissions", self._emissions.run()),
                ("commit", _every(self._waits.commit_s, self._commit)),
                ("propose", _every(self._waits.propose_s, self._propose)),
                ("liveness", _every(self._waits.liveness_s, self._check_liveness)),
                ("gauges", _every(self._waits.measure_s, self._measure)),
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
            self._assignment.poison.close()

    async def _until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            beat()  # in the loop that folds: a fold that hangs holds it up
            reason = self._seam.crash_reason
            if reason is not None:
                raise UnavailableError(f"expected the Faust app to run, got its crash: {reason!r}") from reason
            await asyncio.sleep(self._waits.poll_s)

    async def _run_app(self) -> None:
        await self._seam.app.start()
        self._started.set()
        await self._failure

    async def _close(self, is_clean: bool, tasks: list[asyncio.Task[None]]) -> None:
        """Clean: what is in flight is acknowledged and committed first, and the group is left at once."""
        self._assignment.is_closing = True
        if is_clean:
            if not await self._emissions.drain(self._waits.drain_s):
                num_left = self._emissions.num_in_flight
                logger.warning("streams %s: %d emissions still in flight", self._fold.stage, num_left)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._commit(), self._waits.stop_s / 3)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._started.wait(), self._waits.stop_s)
        if not await self._seam.stop(leave=is_clean, timeout_s=self._waits.stop_s):
            logger.warning("streams %s: the Faust app did not stop within %s s", self._fold.stage, self._waits.stop_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fail(self, error: BaseException) -> None:
        """Ends `serve` with the error."""
        if not self._assignment.is_closing and not self._failure.done():
            self._failure.set_exception(error)

    async def _commit(self) -> None:
        if not self._assignment.is_ready or self._seam.is_rebalancing:
            return
        epoch, marks = self._ledger.epoch, self._ledger.committable()
        if not marks:
            return
        # Without a broker this waits, and Faust keeps trying; a second commit beside it would block the fetches too.
        if await self._seam.commit(marks):
            self._ledger.committed(marks, epoch=epoch)
            self._metrics.add(COMMITS)

    async def _propose(self) -> None:
        if not self._assignment.is_ready or self._assignment.is_closing:
            return
        proposals = self._fold.propose(time.monotonic(), time.time_ns() // 1_000_000)
        futures = [await self._emissions.append(output) for output in proposals]
        try:
            async with asyncio.timeout(AWAY_S):
                for future in futures:
                    await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise UnavailableError(f"expected proposals acknowledged within {AWAY_S:g} s, got no answer") from error

    async def _check_liveness(self) -> None:
        age_s = self._emissions.oldest_age_s
        if age_s > AWAY_S:
            raise UnavailableError(f"expected an acknowledgement within {AWAY_S:g} s, got {age_s:.0f}")
        epoch = self._ledger.epoch
        lag = await asyncio.to_thread(self._liveness.check, self._assignment.positions(), time.monotonic())
        if epoch == self._ledger.epoch:
            self._assignment.lag = lag

    async def _measure(self) -> None:
        """Sets all gauges; an assignment that ended leaves no partition behind."""
        metrics, assignment = self._metrics, self._assignment
        metrics.set(READY, assignment.is_ready)
        metrics.set(OPEN, self._fold.num_open)
        metrics.set(IN_FLIGHT, self._emissions.num_in_flight)
        metrics.set(LAG, sum(assignment.lag.values()))
        metrics.clear(ASSIGNED)
        for where in assignment.starts:
            metrics.set(ASSIGNED, 1, where.topic, str(where.partition))


async def _every(interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await work()
