"""Runs rollouts: reads requests, makes attempts until one is final, tells what became of them.

    rollouts --(group `runner`)--> claim a number --> begin, agent, end, grade --> rewards --> rollout_events --> commit

In: `rollouts` as a member of the group, `rollout_events` from where the run began. Out: `rewards`, then the end
event, then the request's offset is done. Invariant: a request is done only when its rollout has a final event on the
log; whoever owns the request's partition owns the rollout, so an attempt that another runner left open is aborted
and made again. Failure: the log is away -> waits; the agent or the grader cannot be imported -> ConfigurationError.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import RecordError, UnavailableError
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT, new_attempt, parse_rollout_id, run_hash_of
from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.protocol import AWAY_S, Log, LogReader, Position, Record, TopicPartition
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.rollouts import (
    ROLLOUTS,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.retry import retry
from tracegrad.schemas.topics import Stage, Topic, Topics

from ..rollout_histories import event_of
from .attempt import perform, records_of
from .children import Launcher
from .commands import CommandPool, check_command
from .config import AgentConfig, RewardConfig, RunnerHandles
from .gateway_client import GatewayClient
from .grading import Grader
from .hosts import HostPool
from .journal import Journal
from .outcome import Outcome

_POLL_S = 0.05
_KEEP_MEMBERSHIP_S = 20.0
"""A full runner still reads this often, well below Kafka's max.poll.interval."""
_RETRY_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 30.0
"""Before the second attempt; doubled for each further one, up to the second figure."""
_MAX_OPEN = 4096
"""Requests read and not yet finished; beyond it the runner stops reading."""

logger = logging.getLogger(__name__)


@dataclass
class _Active:
    """One rollout in the works."""

    request: RolloutRequest
    position: Position
    task: asyncio.Task[None] | None = None
    attempt: str | None = None
    """Running now, its end not yet written."""


class Runner:
    """All rollouts of one runner process, on one event loop."""

    def __init__(
        self, launcher: Launcher, reward: RewardConfig, reader: LogReader, journal: Journal, stop: threading.Event
    ) -> None:
        self._launcher = launcher
        self._run_hash = launcher.handles.run_hash
        self._gateway = GatewayClient(launcher.handles)
        self._grader = Grader(reward, launcher)
        self._pool = _pool(launcher)
        self._reader = reader
        self._journal = journal
        self._histories = journal.histories
        self._stop = stop
        self._ledger = Ledger()
        self._active: dict[str, _Active] = {}
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owned: set[TopicPartition] = set()
        self._is_closing = False

    async def serve(self) -> None:
        """Until `stop` is set, or a fatal error."""
        # First of all, since its beats must come while hosts start.
        loops = [asyncio.create_task(self._until_stop())]
        try:
            await self._grader.begin()
            async with self._pool.slot():
                pass  # the agent can be started at all
            loops += [asyncio.create_task(loop) for loop in (self._journal.follow(self._note), self._read())]
            done, _ = await asyncio.wait([*loops, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            self._is_closing = True
            tasks = [*loops, *(active.task for active in self._active.values() if active.task is not None)]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=10)
            await asyncio.gather(*(part.close() for part in (self._pool, self._gateway, self._grader)))
            await asyncio.to_thread(self._launcher.close)
            await asyncio.to_thread(self._reader.close)
            await asyncio.to_thread(self._journal.close)

    async def _until_stop(self) -> None:
        while not self._stop.is_set():
            beat()
            await asyncio.sleep(0.1)

    def _note(self, event: RolloutEvent) -> None:
        active = self._active.get(event.rollout_id)
        if active is not None and active.attempt == event.attempt_id and event.state.is_end and active.task:
            active.attempt = None
            active.task.cancel("another runner ended this attempt")

    async def _read(self) -> None:
        """Takes requests and commits what is done, once the histories hold what earlier runners wrote."""
        await self._journal.caught_up()
        clock = asyncio.get_running_loop().time
        last_read_s = 0.0
        while True:
            room = _MAX_OPEN - self._ledger.num_open
            if room <= 0 and clock() - last_read_s < _KEEP_MEMBERSHIP_S:
                await asyncio.sleep(_POLL_S)
            else:
                last_read_s = clock()
                records, positions = await asyncio.to_thread(self._read_records, max(1, min(room, 500)))
                for record in records:
                    self._ledger.redeliver(record.position)
                self._ledger.retain(positions)
                self._owned = set(positions)
                for record in records:
                    await self._take(record)
            due = {where: offset for where, offset in self._ledger.committable().items() if where in self._owned}
            committed = await asyncio.to_thread(self._commit, due)
            self._ledger.committed(committed, epoch=self._ledger.epoch)

    def _read_records(self, max_records: int) -> tuple[Sequence[Record], Mapping[TopicPartition, int]]:
        try:
            records = self._reader.read(max_records=max_records, timeout_s=_POLL_S * 2)
        except UnavailableError as error:
            logger.warning("the log is away, trying again: %s", error)
            records = ()
        return records, self._reader.positions()

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The offsets that were committed."""
        try:
            if offsets:
                self._reader.commit(offsets)
        except UnavailableError as error:
            logger.warning("offsets not committed, trying again: %s", error)
            return {}
        return offsets

    async def _take(self, record: Record) -> None:
        try:
            request = self._decode(record)
            parse_rollout_id(request.rollout_id)
            if run_hash_of(request.rollout_id) != self._run_hash:
                raise RecordError(f"expected a rollout of run {self._run_hash}", reason=Reason.FOREIGN_RUN)
        except ValueError as error:
            await self._journal.dead_letter(record, error)
            self._ledger.done([record.position], epoch=self._ledger.epoch)
            return
        known = self._active.get(request.rollout_id)
        if known is not None:
            if known.position != record.position:
                self._ledger.done([record.position], epoch=self._ledger.epoch)
            return
        active = self._active[request.rollout_id] = _Active(request, record.position)
        active.task = asyncio.create_task(self._work(active))
        active.task.add_done_callback(self._note_failure)

    def _decode(self, record: Record) -> RolloutRequest:
        try:
            request = ROLLOUTS.decode(record.value)
        except RecordError as error:
            self._journal.refusals.refuse(record, error)
            raise
        self._journal.refusals.accept(record)
        return request

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _work(self, active: _Active) -> None:
        """One rollout until it has a final event, or until its partition is another runner's."""
        rollout = active.request.rollout_id
        try:
            while not (history := self._histories.of(active.request)).is_final or history.open_attempts:
                if TopicPartition(active.position.topic, active.position.partition) not in self._owned:
                    logger.info("rollout %s: its partition was taken over by another runner", rollout)
                    return
                try:
                    await self._advance(active)
                except asyncio.CancelledError:
                    if active.attempt is not None or self._is_closing:
                        raise
                    logger.info("rollout %s: another runner ended its attempt", rollout)
            self._ledger.done([active.position], epoch=self._ledger.epoch)
        finally:
            self._active.pop(rollout, None)

    async def _advance(self, active: _Active) -> None:
        """One step towards the final event."""
        request, history = active.request, self._histories.of(active.request)
        max_attempts = history.max_attempts(request.limits)
        if history.open_attempts:
            number, attempt = history.open_attempts[0]
            is_last = number + 1 >= max_attempts and history.owners.get(number) == attempt
            await self._abort(request, number, attempt, "its runner stopped", is_final=is_last)
            return
        number = history.next_number
        if number >= max_attempts:
            await self._journal.tell(
                event_of(request, GIVEN_UP_ATTEMPT, number, RolloutState.GIVEN_UP, is_final=True, error=history.error)
            )
            return
        if number > 0:
            await asyncio.sleep(min(_RETRY_BACKOFF_S * 2 ** (number - 1), _MAX_BACKOFF_S) * random.random())
        async with self._pool.slot() as run_agent:
            attempt = new_attempt()
            await self._journal.tell(event_of(request, attempt, number, RolloutState.STARTED))
            if self._histories.of(request).owners.get(number) != attempt:
                await self._abort(request, number, attempt, "another runner has this attempt number", is_final=False)
                return
            active.attempt = attempt
            outcome = await perform(run_agent, request, attempt, self._gateway, self._grader)
            max_attempts = history.max_attempts(request.limits, is_replaced=outcome.is_gateway_replaced)
            is_final = outcome.state is not RolloutState.ABORTED or number + 1 >= max_attempts
            await self._finish(active, attempt, number, outcome, is_final=is_final)

    async def _abort(self, request: RolloutRequest, number: int, attempt: str, reason: str, *, is_final: bool) -> None:
        """Ends an attempt that nobody runs, so that its episode closes."""
        calls_closed = True
        try:
            await self._gateway.end(request.rollout_id, attempt)
        except UnavailableError:
            calls_closed = False
        logger.info("rollout %s attempt %s: aborted: %s", request.rollout_id, attempt, reason)
        event = event_of(request, attempt, number, RolloutState.ABORTED, is_final=is_final, error=reason)
        await self._journal.tell(msgspec.structs.replace(event, calls_closed=calls_closed))

    async def _finish(self, active: _Active, attempt: str, number: int, outcome: Outcome, *, is_final: bool) -> None:
        """Rewards first, then the end event, so that who reads the end finds them."""
        request = active.request
        event, rewards = records_of(request, attempt, number, outcome, is_final=is_final)
        for reward in rewards:
            await self._journal.reward(request.rollout_id, reward)
        active.attempt = None
        await self._journal.tell(event)
        level = logging.WARNING if event.state is RolloutState.ABORTED else logging.DEBUG
        logger.log(level, "rollout %s attempt %s: %s: %s", request.rollout_id, attempt, event.state.value, event.error)


def _pool(launcher: Launcher) -> HostPool | CommandPool:
    """Where agents run."""
    agent = launcher.agent
    if agent.command is not None:
        return CommandPool(launcher)
    per_host = -(-agent.concurrency // agent.hosts)
    return HostPool(launcher, count=agent.hosts, per_host=per_host, name="agent-host")


def run(
    agent: AgentConfig,
    reward: RewardConfig,
    handles: RunnerHandles,
    *,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
    starts: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Runs rollouts until `stop` is set. Blocks.

    `starts`: where the run began on the raw topics, which it shares with others; None: at their beginning.

    Raises:
        ConfigurationError: the agent or the grader cannot be started.
        LogGapError: requests were lost before they were read.
    """
    check_command(agent)

    journal = Journal(log, topics, handles.run_hash, starts=starts, stop=stop, metrics=metrics)
    join = partial(log.join, topics.group(Stage.RUNNER), [topics.name(Topic.ROLLOUTS)])
    reader = retry(join, doing="joining the runners", patience_s=AWAY_S, stop=stop)

    async def main() -> None:
        launcher = Launcher(agent, handles)
        async with launcher.opened():
            await Runner(launcher, reward, reader, journal, stop).serve()

    asyncio.run(main())
