"""The broker of a run, whoever has to open it: a cluster, a live run's, or its own, from the folder of one that ended.

In: a run. Out: where its broker listens, within a block. Invariant: one broker at a time on a folder; what another
reader has opened is not shared, for it goes away with that one. Failure: ConfigurationError: another reader has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ..local_kafka.broker import LocalKafka, is_ready
from ..loopback import is_free
from ..run.run_dir import RunDir
from ..run.wiring import Wiring, port_of

WAIT_S = 120.0
"""For another command that has opened the same broker."""
_READER = "reader"
"""The lock of who has opened the broker of a run that has ended."""


@contextlib.contextmanager
def open_broker(source: RunDir, *, wait_s: float = 0.0, say: Callable[[str], None] = lambda why: None) -> Iterator[str]:
    """`host:port` of the run's broker; another reader of a run that has ended gets `wait_s` to be done.

    `say` hears what is waited for: that reader, and a broker that has to be started first, which takes a busy machine
    half a minute.
    """
    servers = source.endpoints.bootstrap_servers
    is_ours = source.settings.kafka.bootstrap_servers is None
    if is_ours and source.is_locked():
        with source.lock(_READER, wait_s=wait_s):
            is_ours = not source.is_locked()
    if not is_ours:
        yield servers
        return
    if wait_s and is_opened(source):
        say(f"another command reads run {source.record.name}; its end is waited for, {wait_s:g} s at most")
    say(f"starting the broker of run {source.record.name}, which has ended, to read its topics")
    port = port_of(servers) if is_free(port_of(servers)) else None
    with source.lock(wait_s=wait_s), source.lock(_READER, wait_s=wait_s), LocalKafka(source.kafka, port=port) as broker:
        yield broker.bootstrap_servers


@contextlib.contextmanager
def readable(wiring: Wiring, *, say: Callable[[str], None] = lambda why: None) -> Iterator[Wiring]:
    """The run with a broker: its own where that runs, be it one that a person started; else it is opened meanwhile."""
    source = wiring.run_dir
    is_ours = source.settings.kafka.bootstrap_servers is None
    if is_ours and not source.is_locked() and is_ready(port_of(wiring.endpoints.bootstrap_servers)):
        yield wiring
        return
    with open_broker(source, wait_s=WAIT_S, say=say) as servers:
        yield Wiring(source, bootstrap_servers=servers)


def is_opened(source: RunDir) -> bool:
    """Whether a reader has opened the broker of a run that has ended."""
    return source.is_locked(_READER)


def is_running(source: RunDir) -> bool:
    """Whether its supervisor lives; whoever reads a run that has ended holds the same lock meanwhile."""
    return source.is_locked() and not is_opened(source)


@contextlib.contextmanager
def own_broker(run: Wiring) -> Iterator[None]:
    """The broker of a run that is being made, where it has one of its own; the caller holds the run's lock."""
    if run.settings.kafka.bootstrap_servers is not None:
        yield
        return
    with LocalKafka(run.run_dir.kafka, port=port_of(run.endpoints.bootstrap_servers)):
        yield
