"""The broker of a run, whoever has to open it: a cluster, a live run's, or its own, from the folder of one that ended.

In: a run's folder. Out: where its broker listens, within a block. Invariant: one broker at a time on a folder; what
another reader has opened is not shared, for it goes away with that one. Failure: ConfigurationError: another reader has
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tracegrad.schemas.errors import ConfigurationError

from ..local_kafka import node as kafka_node
from ..local_kafka.broker import LocalKafka
from ..run.run_dir import RunDir
from ..run.wiring import port_of

__all__ = ["is_opened", "open_broker"]

_READER = "reader"
"""The lock of who has opened the broker of a run that has ended."""


@contextlib.contextmanager
def open_broker(source: RunDir, *, wait_s: float = 0.0) -> Iterator[str]:
    """`host:port` of the run's broker; another reader of a run that has ended gets `wait_s` to be done."""
    servers = source.endpoints.bootstrap_servers
    is_ours = source.settings.kafka.bootstrap_servers is None
    if is_ours and source.is_locked():
        with source.lock(_READER, wait_s=wait_s):
            is_ours = not source.is_locked()
    if not is_ours:
        yield servers
        return
    port = port_of(servers) if kafka_node.is_free(port_of(servers)) else None
    with source.lock(wait_s=wait_s), source.lock(_READER, wait_s=wait_s), LocalKafka(source.kafka, port=port) as broker:
        yield broker.bootstrap_servers


def is_opened(source: RunDir) -> bool:
    """Whether a reader has opened the broker of a run that has ended."""
    try:
        with source.lock(_READER):
            return False
    except ConfigurationError:
        return True
