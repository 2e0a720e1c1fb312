"""LogWriter on an idempotent producer: acks=all, zstd, keys placed as Java and aiokafka place them.

In: records to append. Out: futures that end when the broker has acknowledged, or with the error. Invariant: what
waits is bounded (OverloadedError at once beyond it), and every future ends: acknowledged, refused, or timed out.
Failure: after a fatal error of the producer, or when it has lost the cluster for good (`Contact`), a new one takes its
place; what it held has failed and is the caller's to append again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.log.protocol import Headers, Position

from .client_settings import Contact, Settings
from .errors import boundary, log_error, translate

logger = logging.getLogger(__name__)
_SEED, _FACTOR, _SHIFT, _WORD = 0x9747B28C, 0x5BD1E995, 24, 0xFFFFFFFF


class KafkaWriter:
    """LogWriter on an idempotent producer; a thread of its own delivers the acknowledgements.

    Args:
        partitions: of topics whose keys must stay where they are when partitions are added: how many to write to.
    """

    def __init__(self, settings: Settings, *, partitions: Mapping[str, int] | None = None) -> None:
        self._settings = settings
        self._partitions = partitions or {}
        self._lock = threading.RLock()
        self._producer = self._new_producer()
        self._is_broken = False
        self._closed = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="kafka-acknowledgements", daemon=True)
        self._poller.start()

    def _new_producer(self) -> Producer:
        self._contact = Contact()
        with boundary("make a producer"):
            return Producer({**self._settings, "error_cb": self._on_error, "stats_cb": self._contact.read_statistics})

    def _on_error(self, error: KafkaError) -> None:
        log_error(error)
        # A fatal error ends an idempotent producer for good; what waited in it has failed, a new one goes on.
        self._is_broken = self._is_broken or error.fatal()

    def _poll(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(0.1)
            if self._is_broken or self._contact.is_lost:
                logger.warning("a producer that %s is replaced", "failed" if self._is_broken else "knows no broker")
                with self._lock:
                    self._producer.purge()
                    self._producer.flush(1.0)
                    self._producer = self._new_producer()
                    self._is_broken = False

    def append(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[Position]:
        future: Future[Position] = Future()
        # A running future cannot be cancelled, so an abandoned await never breaks the delivery thread.
        future.set_running_or_notify_cancel()
        doing = f"append to {topic!r}"
        if partition is None and key is not None and topic in self._partitions:
            partition = partition_for(key, self._partitions[topic])
        if self._closed.is_set():
            future.set_exception(UnavailableError(f"expected an open writer to {doing}, got a closed one"))
            return future
        try:
            with self._lock:
                self._producer.produce(
                    topic,
                    value=value,
                    key=key,
                    partition=-1 if partition is None else partition,
                    headers=list(headers),
                    timestamp=timestamp_ms or 0,
                    on_delivery=_settle(future, doing),
                )
        except BufferError as error:
            raise OverloadedError(f"expected room in the queue to {doing}, got a full one; wait") from error
        except KafkaException as error:
            future.set_exception(translate(error.args[0], doing=doing))
        return future

    def flush(self, timeout_s: float) -> None:
        """Waits until every append has ended. Raises UnavailableError past the time."""
        with boundary("flush"):
            left = self._producer.flush(timeout_s)
        if left:
            raise UnavailableError(f"expected every append acknowledged within {timeout_s} s, got {left} waiting")

    def close(self, timeout_s: float = 10.0) -> None:
        if self._closed.is_set():
            return
        try:
            self.flush(timeout_s)
        finally:
            self._closed.set()
            self._poller.join(5.0)
            with self._lock:
                # Fails what is left, so that nobody waits for a future that cannot end.
                self._producer.purge()
                self._producer.flush(1.0)


def _settle(future: Future[Position], doing: str) -> Callable[[KafkaError | None, Message], None]:
    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            future.set_exception(translate(error, doing=doing))
        else:
            future.set_result(Position(message.topic() or "", message.partition() or 0, message.offset() or 0))

    return on_delivery


def partition_for(key: bytes, num_partitions: int) -> int:
    """Where Kafka's clients put a key, for the partitions that a topic had once: murmur2 without its sign, modulo
    those.

    Equal to Java's, aiokafka's and librdkafka's `murmur2_random` on a topic of so many. Partitions that are added to a
    topic move its keys, and a client knows the present number only; records of one key in two partitions have no order.
    """
    return (_murmur2(key) & 0x7FFFFFFF) % num_partitions


def _murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2, 32 bits, with the seed of Kafka's `Utils.murmur2`."""
    end = len(data) & ~3
    digest = _SEED ^ len(data)
    for at in range(0, end, 4):
        block = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _WORD
        block = (block ^ block >> _SHIFT) * _FACTOR & _WORD
        digest = digest * _FACTOR & _WORD ^ block
    if end < len(data):
        digest = (digest ^ int.from_bytes(data[end:], "little")) * _FACTOR & _WORD
    digest = (digest ^ digest >> 13) * _FACTOR & _WORD
    return digest ^ digest >> 15
