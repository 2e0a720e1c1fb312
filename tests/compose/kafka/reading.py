"""A topic of one's own on the shared broker, and its records read within a time."""

from __future__ import annotations

import time
import uuid

from confluent_kafka.cimpl import NewTopic

from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.protocol import LogReader, Record


def new_topic(log: KafkaLog, partitions: int = 1, **config: str) -> str:
    """A fresh topic on the real broker."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    log.admin.create_topics([NewTopic(name, partitions, 1, config=config)])
    log.admin.partition_counts([name])
    return name


def read(reader: LogReader, count: int, *, timeout_s: float = 30.0) -> list[Record]:
    """Reads until so many records came."""
    found: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        found += reader.read(timeout_s=0.1)
    return found
