"""`OTEL_TRACES_EXPORTER=tracegrad_kafka`: the span exporter that an agent's SDK finds by its name, made of variables.

In: TRACEGRAD_KAFKA_BOOTSTRAP_SERVERS, and if need be TRACEGRAD_KAFKA_TOPIC_PREFIX, TRACEGRAD_KAFKA_TOPICS and
TRACEGRAD_KAFKA_CLIENT (JSON objects), as the keys of `[kafka]` in a run's settings. Out: spans straight to Kafka, at
exit and at SIGTERM too. Invariant: client settings pass the allow-list of `[kafka.client]`. Failure:
ConfigurationError, said when the SDK starts; under a runner always, which counts spans at its gateway and lets nobody
else name its rollouts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType

import msgspec

from tracegrad.producers.client.kafka_exporter import KafkaSpanExporter
from tracegrad.producers.runner.agent_environment import UNDER_RUNNER
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.topics import Topics

from .kafka.client_settings import KafkaConfig
from .kafka.log import KafkaLog

_PREFIX = "TRACEGRAD_KAFKA_"
_ANY_RUN = RunName("any")
"""Raw topics belong to none."""


def kafka_of(environ: Mapping[str, str]) -> KafkaConfig:
    """The cluster that the variables name. Raises ConfigurationError."""
    if environ.get(UNDER_RUNNER):
        raise ConfigurationError(
            "OTEL_TRACES_EXPORTER=tracegrad_kafka: expected an agent that no runner starts; under one, spans go to its "
            "OTLP gateway, which counts them and checks their credential; leave OTEL_TRACES_EXPORTER as it sets it"
        )
    servers = environ.get(f"{_PREFIX}BOOTSTRAP_SERVERS")
    if not servers:
        raise ConfigurationError(f"expected {_PREFIX}BOOTSTRAP_SERVERS=host:port, got nothing; set it")
    return KafkaConfig(
        bootstrap_servers=servers,
        topic_prefix=environ.get(f"{_PREFIX}TOPIC_PREFIX", ""),
        topics=_table(environ, "TOPICS"),
        client=_table(environ, "CLIENT"),
    )


def _table(environ: Mapping[str, str], name: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(environ.get(_PREFIX + name) or "{}", type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{_PREFIX}{name}: expected a JSON object of texts, got {error}") from error


class TracegradKafkaExporter(KafkaSpanExporter):
    """As the SDK makes it: without arguments. Raises ConfigurationError."""

    def __init__(self) -> None:
        kafka = kafka_of(os.environ)
        topics = Topics(run=_ANY_RUN, prefix=kafka.topic_prefix, renames=kafka.topics)
        super().__init__(KafkaLog(kafka.bootstrap_servers or "", kafka.client).writer(), topics)
        # By default SIGTERM ends Python at once, and what waits for its batch is lost.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
