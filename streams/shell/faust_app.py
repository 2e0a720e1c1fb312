"""One Faust app, made to consume and nothing else, and the private names of Faust that deferred acknowledgement needs.

In: the configuration and a consumer group. Out: `FaustSeam`, the only thing that touches Faust's insides (a test pins
each of these names to the release in use). Invariant: Faust acknowledges, commits, declares, serves and produces
nothing here; offsets are committed by `FaustSeam.commit` alone. Failure: ConfigurationError for security settings
that Faust cannot follow; what kills the app shows in `FaustSeam.crash_reason`. Not to be combined with tables,
windows, `noack` or Faust's own producer.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any

import faust
from faust.app.base import BootStrategy
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.auth import CredentialsT
from mode.services import WaitResults
from mode.threads import WorkerThread

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.topics import INPUTS, Stage, Topics

from .config import WAITS, StreamsHandles

logger = logging.getLogger(__name__)

_BUFFERED_MESSAGES = 512
"""Messages that Faust may hold ready for the fold; a worker far behind would otherwise hold 4096 large records."""
_FETCH_MAX_WAIT_MS = 50
"""Faust's hard-coded 1500 stalls busy partitions behind idle ones."""
_FETCH_MIN_BYTES = 64 * 1024
"""Gathered by the broker, for at most that wait: a fetch for each record costs more than the record."""
_REQUEST_TIMEOUT_S = 30.0
_NEVER_S = 24 * 3600.0
"""For Faust's own commit timer and its watch-dogs, which see nothing here because nothing is acknowledged to Faust."""

EventHandler = Callable[[Any], Awaitable[None]]
SignalHandler = Callable[..., Awaitable[None]]


class _DaemonThread(WorkerThread):
    """Does not keep a process alive whose app could not be stopped: the supervisor waits for its exit."""

    def __init__(self, service: Any, **rest: Any) -> None:
        super().__init__(service, **rest)
        self.daemon = True


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    """Waits for data less than Faust's 1500 ms, so that an idle partition does not stall busy ones."""

    def _create_worker_consumer(self, transport: driver.Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust hands aiokafka a number of its own and no setting reaches it; both are read when it starts.
        consumer._fetch_max_wait_ms = _FETCH_MAX_WAIT_MS
        consumer._fetch_min_bytes = _FETCH_MIN_BYTES
        return consumer

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seeks every partition, also those at offset 0 or without a commit, which aiokafka would leave where they are.

        Faust rewinds by this after a rebalance; what it dropped meanwhile would else be lost.
        """
        offsets: Mapping[TP, int] = await self.call_thread(self._seek_all)
        return offsets

    async def _seek_all(self) -> dict[TP, int]:
        consumer = self._ensure_consumer()
        offsets = {}
        for where in consumer.assignment():
            offset = await consumer.committed(where)
            if offset is None:
                offset = (await consumer.beginning_offsets([where]))[where]
            if where in consumer.assignment():
                consumer.seek(where, offset)
                offsets[TP(where.topic, where.partition)] = offset
        return offsets


class _BegunCoroutine:
    """The rest of a coroutine that has run up to its first wait, to be awaited like any other.

    A coroutine that was sent into can be neither awaited from its start nor made a task of: what it waits for has been
    handed out and would be lost. So this yields that first, and then passes on whatever the event loop sends or throws,
    a cancellation too, until the coroutine returns: `yield from`, begun one step late.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:  # whatever is thrown in is the coroutine's to answer
                resume = functools.partial(self._coroutine.throw, error)
            else:
                resume = functools.partial(self._coroutine.send, sent)
            try:
                waits_for = resume()
            except StopIteration as end:
                return end.value


class _Consumer(driver.Consumer):
    async def wait_first(self, *coros: Any, timeout: Any = None) -> Any:
        """Faust waits for the hand-over of each message beside three other events, in four tasks, which is nearly half
        of what a message costs. A hand-over that need not wait is over at its first step and needs none of them.
        """
        hand_over = coros[0]
        # While the flow is suspended (a rebalance), nothing may be handed over: Faust's own way decides.
        if asyncio.iscoroutine(hand_over) and not self.suspend_flow.is_set():
            try:
                waits_for = hand_over.send(None)
            except StopIteration as end:
                for other in coros[1:]:
                    # Never begun; unclosed, each would warn that it was never awaited.
                    other.close()
                return WaitResults([hand_over], [end.value], False)
            coros = (_BegunCoroutine(hand_over, waits_for), *coros[1:])
        return await super().wait_first(*coros, timeout=timeout)

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        thread = _ConsumerThread(self, loop=self.loop, beacon=self.beacon, Worker=_DaemonThread)
        return thread


class _Boot(BootStrategy):
    """No producer: what a stage emits goes through the LogWriter that it was handed."""

    enable_kafka_producer = False
    enable_web = False


class _App(faust.App):
    BootStrategy = _Boot


class FaustSeam:
    """A Faust app of one group, seen through what the worker needs of it.

    Must be made inside the event loop that will run it.
    """

    def __init__(
        self, handles: StreamsHandles, *, stage: Stage, topics: Topics, session_s: float = WAITS.session_s
    ) -> None:
        self.group = topics.group(stage)
        self.inputs = tuple(topics.name(topic) for topic in INPUTS[stage])
        folder = Path(handles.data_dir) / "faust"
        # Faust makes the folder of its own and those in it, but not its parents.
        folder.mkdir(parents=True, exist_ok=True)
        self._is_static = handles.instance_id is not None
        self.app: faust.App = _App(
            self.group,
            broker=[f"kafka://{server.strip()}" for server in handles.bootstrap_servers.split(",")],
            broker_credentials=_credentials(handles.kafka),
            datadir=str(folder / f"{stage.value}-{handles.instance_id or os.getpid()}"),
            store="memory://",
            autodiscover=False,
            web_enabled=False,
            key_serializer="raw",
            value_serializer="raw",
            topic_allow_declare=False,
            topic_disable_leader=True,
            table_standby_replicas=0,
            stream_wait_empty=False,
            stream_buffer_maxsize=_BUFFERED_MESSAGES,
            stream_processing_timeout=_NEVER_S,
            broker_commit_interval=_NEVER_S,
            broker_commit_livelock_soft_timeout=_NEVER_S,
            broker_request_timeout=_REQUEST_TIMEOUT_S,
            broker_session_timeout=session_s,
            broker_heartbeat_interval=session_s / 4,
            consumer_auto_offset_reset="earliest",
            consumer_group_instance_id=handles.instance_id,
        )
        transport = driver.Transport(self.app.conf.broker_consumer, self.app)
        transport.Consumer = _Consumer  # type: ignore[misc]
        self.app.transport = transport

    def consume(self, handle: EventHandler, on_end: Callable[[BaseException | None], None]) -> None:
        """Registers the one agent: `handle` gets each message; `on_end` is told when and why it stopped."""
        topic = self.app.topic(*self.inputs, key_serializer="raw", value_serializer="raw", acks=False)

        async def fold(stream: Any) -> None:
            # What leaves an agent is lost for ever and stalls the worker, so nothing does.
            try:
                events: AsyncIterator[Any] = stream.events()
                async for event in events:
                    await handle(event.message)
            except Exception as error:
                on_end(error)
            else:
                on_end(None)

        self.app.agent(topic, name=f"{self.group}.fold")(fold)

    def on_rebalance(self, *, revoked: SignalHandler, complete: SignalHandler) -> None:
        """Registers what runs when partitions go, and when they are there, before events flow."""
        self.app.on_partitions_revoked.connect(revoked)
        self.app.on_rebalance_complete.connect(complete)

    def is_current(self, message: Any) -> bool:
        """False for a message of a former assignment."""
        return bool(message.generation_id == self.app.consumer_generation_id)

    @property
    def is_rebalancing(self) -> bool:
        """True from the revocation until events flow again."""
        return bool(self.app.rebalancing)

    @property
    def crash_reason(self) -> BaseException | None:
        """What killed the app, or None."""
        if not self.app.crashed:
            return None
        return self.app.crash_reason or RuntimeError("the Faust app crashed without a reason")

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The input partitions of this worker now."""
        assigned: set[TP] = self.app.consumer.assignment()
        return tuple(sorted(TopicPartition(tp.topic, tp.partition) for tp in assigned if tp.topic in self.inputs))

    async def commit(self, marks: Mapping[TopicPartition, int]) -> bool:
        """Commits next offsets. False: the group has rebalanced, and whoever owns the partitions reads them again."""
        offsets = {TP(where.topic, where.partition): offset for where, offset in marks.items()}
        # The public `commit` takes its offsets from Faust's own acknowledgements, of which there are none here.
        return bool(await self.app.consumer._commit(offsets))  # type: ignore[attr-defined]

    async def stop(self, *, leave: bool, timeout_s: float) -> bool:
        """Stops the app; `leave` gives the partitions up at once, also those of a static member. False: it hangs."""
        if leave and self._is_static and self.app._consumer is not None:
            client = self.app._consumer._thread._consumer  # type: ignore[attr-defined]
            if client is not None and client._coordinator is not None:
                # aiokafka never sends a static member's leave, and its partitions would stand still for the session.
                client._coordinator._group_instance_id = None
        try:
            await asyncio.wait_for(self.app.stop(), timeout_s)
        except TimeoutError:
            return False
        return True


def _credentials(settings: Mapping[str, str]) -> CredentialsT | None:
    """Faust's credentials for the client settings of the user's cluster."""
    protocol = settings.get("security.protocol", "plaintext").upper()
    if protocol == "PLAINTEXT":
        return None
    context = _ssl_context(settings) if protocol in ("SSL", "SASL_SSL") else None
    if protocol == "SSL" and context is not None:
        return faust.SSLCredentials(context)
    if protocol not in ("SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigurationError(
            f"security.protocol: expected PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, got {protocol!r}"
        )
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "PLAIN")).upper()
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise ConfigurationError(
            f"sasl.mechanism: expected PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 for the streams workers, got {mechanism!r}"
        )
    return faust.SASLCredentials(
        username=settings.get("sasl.username"),
        password=settings.get("sasl.password"),
        mechanism=mechanism,
        ssl_context=context,
    )


def _ssl_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
        certificate = settings.get("ssl.certificate.location")
        if certificate is not None:
            context.load_cert_chain(certificate, settings.get("ssl.key.location"), settings.get("ssl.key.password"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"ssl.*.location: expected readable PEM files, got {error}") from error
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    return context
