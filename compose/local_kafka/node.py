"""What one local Kafka node is made of: its configuration files, its ports, and how to tell that it is ready.

In: a data folder and ports. Out: files in it, and answers about loopback ports. Invariant: every listener is on
127.0.0.1. Knows no client library: readiness is one Metadata request by hand, because a broker accepts
connections before it is part of its own cluster, and topics made then fail.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Collection
from pathlib import Path

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.topics import MAX_MESSAGE_BYTES

__all__ = ["free_port", "is_free", "is_ready", "write_config"]

_HOST = "127.0.0.1"
_FIRST_PORT = 20_000
_METADATA_V1 = struct.pack(">hhihi", 3, 1, 1, -1, 0)
"""Request header (api, version, correlation id, no client id) and an empty list of topics."""

_SERVER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={log_dir}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=2
log.segment.bytes=67108864
log.cleaner.dedupe.buffer.size=4194304
message.max.bytes={max_message_bytes}
replica.fetch.max.bytes={max_message_bytes}
"""

_LOG4J = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName={log_file}
appender.file.filePattern={log_file}.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c{{1}})%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=2
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=info
"""


def write_config(data_dir: Path, broker: int, controller: int) -> Path:
    """Writes server.properties and log4j2.properties; returns the path of the first."""
    config = data_dir / "server.properties"
    config.write_text(
        _SERVER.format(
            broker=broker, controller=controller, log_dir=data_dir / "log", max_message_bytes=MAX_MESSAGE_BYTES
        )
    )
    (data_dir / "log4j2.properties").write_text(_LOG4J.format(log_file=data_dir / "broker.log"))
    return config


def is_free(port: int) -> bool:
    """Whether a listener could bind this loopback port now."""
    with socket.socket() as probe:
        # As Java does: connections that linger after a kill do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def free_port(*, excluding: Collection[int] = ()) -> int:
    """A free loopback port below the ephemeral range, where no outgoing connection takes it while Kafka is down."""
    for _ in range(1000):
        port = random.randrange(_FIRST_PORT, _ephemeral_begin())
        if port not in excluding and is_free(port):
            return port
    raise UnavailableError("expected a free loopback port, got 1000 taken ones")


def _ephemeral_begin() -> int:
    try:
        begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        begin = 32_768
    return begin if begin > _FIRST_PORT + 1000 else 60_000


def is_ready(port: int) -> bool:
    """Whether the broker answers requests and counts itself among the cluster's brokers."""
    try:
        with socket.create_connection((_HOST, port), timeout=1.0) as connection:
            connection.settimeout(2.0)
            connection.sendall(struct.pack(">i", len(_METADATA_V1)) + _METADATA_V1)
            with connection.makefile("rb") as answers:
                # Length, correlation id, then the number of brokers.
                answer = answers.read(12)
    except OSError:
        return False
    return len(answer) == 12 and int(struct.unpack(">iii", answer)[2]) >= 1
