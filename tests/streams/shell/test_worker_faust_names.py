"""The private names of Faust, mode and aiokafka that the shell rests on. When one of these tests fails after an
upgrade: read that release's consumer.py, tables/recovery.py and drivers/aiokafka.py, adapt streams/shell/faust_app.py,
and run the tests of test_worker_kafka.py several times before you pin the new release here."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable

import aiokafka  # type: ignore[import-untyped]
import faust
import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator  # type: ignore[import-untyped]
from faust.app.base import App, BootStrategy
from faust.tables.recovery import Recovery
from faust.transport.consumer import Consumer
from faust.transport.drivers import aiokafka as driver

from tracegrad.streams.shell import faust_app

CHANGED = "Faust has changed; see this file's docstring. Missing: "


def test_releases_are_those_that_were_tested() -> None:
    """Under SIGKILL, with delayed acknowledgements; others may lose messages."""
    assert faust.__version__ == "0.15.3", CHANGED + "release 0.15.3"
    assert aiokafka.__version__.startswith("0.14."), CHANGED + "aiokafka 0.14"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (driver.Transport, "Consumer"),
        (driver.Consumer, "_new_consumer_thread"),
        (driver.Consumer, "_commit"),
        (driver.AIOKafkaConsumerThread, "_create_worker_consumer"),
        (driver.AIOKafkaConsumerThread, "_ensure_consumer"),
        (driver.AIOKafkaConsumerThread, "seek_to_committed"),
        (BootStrategy, "enable_kafka_producer"),
        (App, "consumer_generation_id"),
        (App, "rebalancing"),
        (App, "on_partitions_revoked"),
        (App, "on_rebalance_complete"),
        (GroupCoordinator, "_maybe_leave_group"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_name_exists(owner: type, name: str) -> None:
    """Each is used, overridden or set by streams/shell/faust_app.py."""
    assert hasattr(owner, name), f"{CHANGED}{owner.__name__}.{name}"


@pytest.mark.parametrize(
    ("function", "snippets"),
    [
        (aiokafka.AIOKafkaConsumer.__init__, ["self._fetch_max_wait_ms = "]),
        (aiokafka.AIOKafkaConsumer.start, ["fetch_max_wait_ms=self._fetch_max_wait_ms"]),
        (GroupCoordinator._maybe_leave_group, ["self._group_instance_id is None", "LeaveGroupRequest("]),
        (driver.AIOKafkaConsumerThread.on_start, ["self._consumer = self._create_consumer("]),
        (driver.ConsumerRebalanceListener.on_partitions_assigned, ["app.consumer_generation_id = generation"]),
        (Consumer._drain_messages, ["self.wait_first(", "callback(message), self.suspend_flow.wait()"]),
        (Consumer.perform_seek, ["await self.seek_to_committed()", "read_offset.update("]),
        (App._on_partitions_revoked, ["self.flow_control.clear", "self.on_partitions_revoked.send"]),
        (
            Recovery._resume_streams,
            ["on_rebalance_complete.send()", "consumer.perform_seek()", "flow_control.resume()", "on_rebalance_end()"],
        ),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_steps_come_in_the_order_that_the_shell_needs(function: object, snippets: list[str]) -> None:
    """Markers are read in the hook, then Faust seeks, then events flow."""
    source = inspect.getsource(function)  # type: ignore[arg-type]
    at = 0
    for snippet in snippets:
        at = source.find(snippet, at)
        assert at >= 0, f"{CHANGED}{snippet!r}, in this order, in {getattr(function, '__qualname__', function)}"


async def test_a_hand_over_that_has_begun_to_wait_is_awaited_like_any_other() -> None:
    """mode makes a task of what is an Awaitable, and asks anything else for its `wait`."""
    gate = asyncio.Event()

    async def hand_over() -> int:
        await gate.wait()
        return 7

    coroutine = hand_over()
    begun = faust_app._BegunCoroutine(coroutine, coroutine.send(None))
    assert isinstance(begun, Awaitable)
    task = asyncio.ensure_future(begun)
    await asyncio.sleep(0)
    gate.set()
    assert await task == 7
