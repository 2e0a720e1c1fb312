"""librdkafka's dotted settings, built in one place from what a user may say; and whether a client has lost its cluster.

In: bootstrap servers and the allow-listed client settings of `[kafka.client]`. Out: dictionaries for producer,
consumer and admin client. Settings that could load code, run commands or weaken the promises of
delivery (acks, idempotence, commits, offset reset) cannot be given. Failure: ConfigurationError, from `KafkaConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import field

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import AWAY_S
from tracegrad.schemas.section import Count, Section
from tracegrad.schemas.topics import MAX_CLIENT_BYTES, MAX_MESSAGE_BYTES

Settings = dict[str, str | int | float | bool]

TAIL_GROUP = "tracegrad-tail"
"""librdkafka wants a group name even from a consumer that joins none."""
CLIENT_SETTINGS = frozenset(
    {
        "broker.address.family",
        "client.dns.lookup",
        "client.rack",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.keepalive.enable",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)
"""What `[kafka.client]` may hold: how to reach and to prove oneself to a cluster, nothing else."""
_STATISTICS_MS = 5000
"""From one word of a client on itself to the next, for `Contact`; not for those whose callbacks nobody serves."""
_KNOWN = ("configured", "learned")
"""Where brokers come from; others stand for none."""
_TOPIC_CHARACTERS = re.compile(r"[A-Za-z0-9._-]*")


class KafkaConfig(Section, frozen=True, kw_only=True):
    """`[kafka]`: a cluster of yours, or a local single node under the run folder."""

    bootstrap_servers: str | None = None
    """host:port,... of your Kafka; None: a local one is started."""
    topic_prefix: str = ""
    """Prefix of every topic and consumer group."""
    partitions: Count = 4
    """Partitions of each topic of the run; fixed when the run is made."""
    topics: dict[str, str] = field(default_factory=dict)
    """Registry name of a raw topic -> its full name on your cluster (a Collector's topic)."""
    max_message_bytes: dict[str, int] = field(default_factory=dict)
    """Registry name of a topic -> its `max.message.bytes`, when we create it; fixed when the run is made.
    `transitions` and `dead_letters` have 32 MiB, others 8. What is larger is left out, with the reason `too_large`."""
    client: dict[str, str] = field(default_factory=dict)
    """Client settings from the allow-list: security.protocol, sasl.*, ssl.*."""
    replication: Count = 1
    """Replication factor of topics that we create."""
    start: str | None = None
    """Where a new run begins to read `otlp_spans` and `otlp_logs`: "beginning", or the time when the first record was
    written, such as 2026-11-24T09:00:00+00:00; None: with what comes from now on. Fixed when the run is made."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, name in (("topic_prefix", self.topic_prefix), *self.topics.items()):
            if not _TOPIC_CHARACTERS.fullmatch(name):
                raise ConfigurationError(f"{key}: expected letters, digits, '.', '_' and '-' only, got {name!r}")
        if self.bootstrap_servers is not None and not self.bootstrap_servers.strip():
            raise ConfigurationError("bootstrap_servers: expected host:port, got nothing; set it, or remove the key")
        self.start_ms()
        for name in self.client:
            if name not in CLIENT_SETTINGS:
                raise ConfigurationError(
                    f"client: {name} is not allowed; expected one of {', '.join(sorted(CLIENT_SETTINGS))}"
                )

    def start_ms(self) -> int | None:
        """`start` in ms since the epoch, 0 for "beginning"; None: it is not set."""
        if self.start in (None, "beginning"):
            return None if self.start is None else 0
        try:
            return int(1000 * datetime.fromisoformat(self.start or "").astimezone().timestamp())
        except (ValueError, OverflowError):
            raise ConfigurationError(
                f'start: expected "beginning" or a time such as 2026-11-24T09:00:00+00:00, got {self.start!r}'
            ) from None


def shared_settings(bootstrap_servers: str, given: Mapping[str, str]) -> Settings:
    """Settings that every client shares. Raises ConfigurationError for one that `KafkaConfig` refuses."""
    KafkaConfig(bootstrap_servers=bootstrap_servers, client=dict(given))
    return {
        "client.id": "tracegrad",
        # The default of 10 s keeps clients away long after a restarted broker is back.
        "reconnect.backoff.max.ms": 1000,
        "socket.timeout.ms": 10_000,
        # A sync commit without coordinator gives up after ten of these; the default means more than an hour.
        "coordinator.query.interval.ms": 1000,
        # Its own lines go to stderr, several a second while a broker is away; the error callback says it too.
        "log_level": 2,
        **given,
        "bootstrap.servers": bootstrap_servers,
    }


def producer_settings(base: Settings) -> Settings:
    """An idempotent producer with acks=all and a bounded queue."""
    return {
        **base,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "zstd",
        # librdkafka's own default partitioner agrees with no other client.
        "partitioner": "murmur2_random",
        # What a topic takes is said by its own setting, at the broker.
        "message.max.bytes": MAX_CLIENT_BYTES,
        # Whoever appends waits for the acknowledgement; what comes meanwhile shares the next request all the same.
        "linger.ms": 0.5,
        # What is not acknowledged by then fails with UnavailableError.
        "message.timeout.ms": int(AWAY_S * 1000),
        # Else an unknown topic fails only after message.timeout.ms.
        "topic.metadata.propagation.max.ms": 3000,
        "statistics.interval.ms": _STATISTICS_MS,
        # What may wait for its acknowledgement; beyond it append raises OverloadedError.
        "queue.buffering.max.kbytes": 256 * 1024,
        "queue.buffering.max.messages": 100_000,
    }


def consumer_settings(base: Settings, *, group: str | None, is_of_history: bool = False) -> Settings:
    """A consumer that commits only when told and never skips: offsets out of range are errors. One of history, which
    lay on disks for long, recomputes the checksum of what it is given: librdkafka does not by itself."""
    settings: Settings = {
        **base,
        "group.id": group or TAIL_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        # As Faust reads, so that folds and audit see the same records.
        "isolation.level": "read_uncommitted",
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 100,
        "statistics.interval.ms": _STATISTICS_MS,
        # Of history there is a reader for each partition, and all are read at once.
        "queued.max.messages.kbytes": (2 if is_of_history else 32) * 1024,
        # A record above it comes alone (KIP-74), however large its topic lets it be.
        "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
        "check.crcs": is_of_history,
    }
    if group is not None:
        settings["partition.assignment.strategy"] = "cooperative-sticky"
        # A killed member's partitions stand still this long; brokers accept 6 s by default. Members learn of
        # a rebalance by heartbeat, and the cooperative protocol needs two.
        settings["session.timeout.ms"] = 6000
        settings["heartbeat.interval.ms"] = 500
    return settings


class _Broker(msgspec.Struct):
    source: str


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker]


_DECODER = msgspec.json.Decoder(_Statistics)


class Contact:
    """Whether a client of librdkafka has lost the cluster for good, so that another must take its place;
    `read_statistics` is its `stats_cb`.

    A cluster whose brokers are all fenced for a moment (a single node late with a heartbeat on a busy machine, a
    rolling restart) answers with topics and no broker. librdkafka 2.13 to 2.16 then forgets the brokers that it knows,
    and, by a race, not always begins again with its bootstrap servers: it says nothing and waits for ever (issue 5301
    there). A client that merely cannot reach its brokers, however long, is not lost: it still knows them and tries.
    """

    def __init__(self) -> None:
        self._num_without = 0

    def read_statistics(self, statistics: str) -> None:
        """Takes what the client says of itself."""
        brokers = _DECODER.decode(statistics).brokers.values()
        self._num_without = 0 if any(broker.source in _KNOWN for broker in brokers) else self._num_without + 1

    @property
    def is_lost(self) -> bool:
        """Twice in a row it knew no broker: once may be the moment before it begins again."""
        return self._num_without > 1
