"""What one local Kafka node is made of: its configuration, its ports, and how to tell that it is ready.

In: a data folder and ports, beside the settings in `server.properties`. Out: a file there, and answers about loopback
ports. Invariant: every listener is on 127.0.0.1. Knows no client library: readiness is one Metadata request by hand,
because a broker accepts connections before it is part of its own cluster, and topics made then fail.
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

_SERVER = Path(__file__).with_name("server.properties")


def write_config(data_dir: Path, broker: int, controller: int) -> Path:
    """Writes the node's server.properties; returns its path."""
    config = data_dir / _SERVER.name
    config.write_text(
        _SERVER.read_text().format(
            broker=broker, controller=controller, log_dir=data_dir / "log", max_message_bytes=MAX_MESSAGE_BYTES
        )
    )
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
