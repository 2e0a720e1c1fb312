"""The order outputs, marker, inputs; its bounds; and what becomes of work whose assignment is over. No broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.memory_log import MemoryLog
from tracegrad.schemas.errors import RecordError, UnavailableError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.protocol import Record, TopicPartition
from tracegrad.schemas.metrics import DEAD_LETTERS, Metrics
from tracegrad.schemas.topics import Stage, Topic, Topics
from tracegrad.streams.shell.emissions import Emissions
from tracegrad.streams.stage_fold import dead_letter

TOPICS = Topics(run=RunName("run"))
EVENTS = TOPICS.name(Topic.EPISODE_EVENTS)
MARKERS = TOPICS.name(Topic.CLOSED_EPISODES)


class _Shell:
    """A ledger and emissions on a memory log."""

    def __init__(self, log: MemoryLog, **bounds: int) -> None:
        log.create_topics(TOPICS, policies=["policy"])
        self.log = log
        self.ledger = Ledger()
        self.epoch = self.ledger.reset()
        self.metrics = Metrics()
        self.emissions = Emissions(
            writer=log.writer(),
            topics=TOPICS,
            ledger=self.ledger,
            stage=Stage.ASSEMBLE,
            metrics=self.metrics,
            max_in_flight=bounds.get("max_in_flight", 100),
        )

    def deliver(self, offset: int, value: bytes = b"v") -> Record:
        self.ledger.deliver(EVENTS, 2, offset)
        return Record(topic=EVENTS, partition=2, offset=offset, key=b"k", value=value)

    def emission(self, *records: Record, marker: bool = True) -> Emission:
        closed = Output(topic=Topic.CLOSED_EPISODES, key=b"k", value=b"closed", partition=records[0].partition)
        return Emission(
            outputs=(Output(topic=Topic.EPISODES, key=b"k", value=b"episode"),),
            marker=closed if marker else None,
            done=tuple(record.position for record in records),
        )

    @property
    def mark(self) -> int | None:
        return self.ledger.committable().get(TopicPartition(EVENTS, 2))

    async def settle(self) -> None:
        """Long enough for every step that need not wait: a marker's, and a dead letter's."""
        for _ in range(4):
            await asyncio.sleep(0.003)


@contextlib.asynccontextmanager
async def _running(shell: _Shell) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(shell.emissions.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_marker_follows_the_outputs_acknowledgement_and_inputs_follow_the_markers(memory_log: MemoryLog) -> None:
    """With acknowledgements held back, each step waits for the one before it."""
    shell = _Shell(memory_log)
    async with _running(shell):
        record = shell.deliver(7)
        memory_log.hold()
        await shell.emissions.emit(shell.emission(record), record, epoch=shell.epoch)
        await shell.settle()
        assert memory_log.records(MARKERS) == []
        assert shell.mark == 7
        memory_log.release(1)
        await shell.settle()
        assert [(marker.partition, marker.value) for marker in memory_log.records(MARKERS)] == [(2, b"closed")]
        assert shell.mark == 7
        assert shell.emissions.num_in_flight == 1
        memory_log.release(1)
        await shell.settle()
        assert shell.mark == 8
        assert await shell.emissions.drain(0.0)


async def test_an_emission_without_records_is_done_at_once(memory_log: MemoryLog) -> None:
    """Where nothing is in flight, late and ignored inputs wait for nobody."""
    shell = _Shell(memory_log)
    record = shell.deliver(0)
    await shell.emissions.emit(Emission(done=(record.position,)), record, epoch=shell.epoch)
    assert shell.mark == 1


async def test_inputs_are_done_in_the_order_of_their_emissions(memory_log: MemoryLog) -> None:
    """Feedback that counted in a group is let go behind it; done before the group's marker is on the log, whoever takes
    over would write the group without it."""
    shell = _Shell(memory_log)
    async with _running(shell):
        said, close = shell.deliver(7), shell.deliver(8)
        memory_log.hold()
        await shell.emissions.emit(shell.emission(close), close, epoch=shell.epoch)
        await shell.emissions.emit(Emission(done=(said.position,)), said, epoch=shell.epoch)
        await shell.settle()
        assert shell.mark == 7
        memory_log.release(1)
        await shell.settle()
        assert (shell.mark, len(memory_log.records(MARKERS))) == (7, 1)
        memory_log.release(1)
        await shell.settle()
        assert shell.mark == 9


async def test_work_of_a_former_assignment_writes_no_marker_and_acknowledges_nothing(memory_log: MemoryLog) -> None:
    """The outputs are on the log already; the next owner emits the same bytes again and writes the marker."""
    shell = _Shell(memory_log)
    async with _running(shell):
        record = shell.deliver(7)
        memory_log.hold()
        await shell.emissions.emit(shell.emission(record), record, epoch=shell.epoch)
        shell.ledger.reset()
        shell.deliver(7)
        memory_log.release()
        await shell.settle()
        assert memory_log.records(MARKERS) == []
        assert shell.mark == 7
        assert shell.emissions.num_in_flight == 0
        await shell.emissions.emit(shell.emission(record), record, epoch=shell.epoch)
        assert len(memory_log.records(TOPICS.name(Topic.EPISODES))) == 1


async def test_emit_waits_at_the_bound_until_acknowledgements_make_room(memory_log: MemoryLog) -> None:
    """Back-pressure: the agent stops, so that Faust stops fetching."""
    shell = _Shell(memory_log, max_in_flight=2)
    async with _running(shell):
        memory_log.hold()
        records = [shell.deliver(offset) for offset in range(3)]
        for record in records[:2]:
            await shell.emissions.emit(shell.emission(record, marker=False), record, epoch=shell.epoch)
        third = asyncio.create_task(
            shell.emissions.emit(shell.emission(records[2], marker=False), records[2], epoch=shell.epoch)
        )
        await shell.settle()
        assert not third.done()
        memory_log.release(1)
        await asyncio.wait_for(third, 1.0)
        memory_log.release()
        await shell.settle()
        assert shell.mark == 3


async def test_an_output_too_large_becomes_a_dead_letter_by_reference(memory_log: MemoryLog) -> None:
    """The neighbours go on, the input is done, and the letter says where the original lies."""
    shell = _Shell(memory_log)
    async with _running(shell):
        record = shell.deliver(5)
        memory_log.fail_next(RecordError("too large", reason="too_large"))
        await shell.emissions.emit(shell.emission(record), record, epoch=shell.epoch)
        await shell.settle()
        (letter,) = memory_log.records(TOPICS.name(Topic.DEAD_LETTERS))
        headers = dict(letter.headers)
        assert letter.value == b""
        assert headers["tracegrad.reason"] == b"unwritable_episodes"
        assert headers["tracegrad.offset"] == b"5"
        assert shell.metrics.value(DEAD_LETTERS, "unwritable_episodes") == 1
        assert shell.mark == 6


async def test_a_dead_letter_too_large_goes_by_reference(memory_log: MemoryLog) -> None:
    """It keeps its own reason."""
    shell = _Shell(memory_log)
    async with _running(shell):
        record = shell.deliver(5, value=b"x" * (40 << 20))
        letter = dead_letter(record, RecordError("bad"), stage=Stage.ASSEMBLE)
        await shell.emissions.emit(Emission(outputs=(letter,), done=(record.position,)), record, epoch=shell.epoch)
        await shell.settle()
        (kept,) = memory_log.records(TOPICS.name(Topic.DEAD_LETTERS))
        assert (kept.value, kept.headers) == (b"", letter.headers)
        assert shell.mark == 6


async def test_a_failed_append_ends_the_run_and_leaves_the_input_open(memory_log: MemoryLog) -> None:
    """The process ends; whoever comes next reads the input again."""
    shell = _Shell(memory_log)
    async with _running(shell) as task:
        record = shell.deliver(5)
        memory_log.fail_next(UnavailableError("away"))
        await shell.emissions.emit(shell.emission(record), record, epoch=shell.epoch)
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(asyncio.shield(task), 1.0)
        assert shell.mark == 5
