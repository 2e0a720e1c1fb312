"""A run's index, up to date: opened, filled from the run's topics, handed out.

In: a run's folder. Out: the index and, where it is asked for, the log. Invariant: what is handed out knows all that lay
on the log when it was asked for; of a run that has ended no broker is opened for what is known already, which the sizes
of its segments tell. Failure: ConfigurationError, UnavailableError with the remedy; a file that turns out to be damaged
is removed, since all that it held lies on topics.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tracegrad.consumers.index.build import INDEXED, IndexProgress, catch_up
from tracegrad.consumers.index.file import open_index
from tracegrad.consumers.index.schema import read_mark, write_mark
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.topics import Topic

from ..run.run_dir import RunDir
from ..run.wiring import Wiring
from .run_broker import WAIT_S, open_broker

_PATIENCE_S = 30.0
"""For a broker that is away: somebody waits for the answer."""


class OpenIndex(NamedTuple):
    """What a question is asked of."""

    connection: sqlite3.Connection
    wiring: Wiring
    log: Log | None
    """None where nobody needs it and the index knew all."""


@contextmanager
def indexed(
    run_dir: RunDir,
    *,
    needs_log: bool,
    tell: Callable[[IndexProgress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda why: None,
) -> Iterator[OpenIndex]:
    """The index of a run. Blocks until it is up to date; `say` hears what is waited for."""
    with open_index(run_dir.path / "index.sqlite") as connection:
        has_ended = run_dir.settings.kafka.bootstrap_servers is None and not run_dir.is_locked()
        if has_ended and not needs_log and read_mark(connection) == _mark(run_dir):
            yield OpenIndex(connection, Wiring(run_dir), None)
            return
        with open_broker(run_dir, wait_s=WAIT_S, say=say) as servers:
            wiring = Wiring(run_dir, bootstrap_servers=servers)
            log = wiring.log(is_history=True)
            policy = wiring.settings.policy.name
            catch_up(log, wiring.topics, policy, connection, tell=tell, patience_s=_PATIENCE_S)
            if needs_log:
                yield OpenIndex(connection, wiring, log)
        if has_ended:
            write_mark(connection, _mark(run_dir))
        if not needs_log:
            yield OpenIndex(connection, wiring, None)


def is_current(run_dir: RunDir) -> bool:
    """Whether the index of a run that has ended knows all that lies on its topics."""
    with open_index(run_dir.path / "index.sqlite") as connection:
        return read_mark(connection) == _mark(run_dir)


def mark_current(run_dir: RunDir) -> None:
    """Says that it does, of a run that has ended."""
    with open_index(run_dir.path / "index.sqlite") as connection:
        write_mark(connection, _mark(run_dir))


def sizes_of(run_dir: RunDir, topics: Iterable[Topic]) -> list[tuple[str, int]]:
    """Of the segments of these topics, as they lie in the folder of a run with a broker of its own."""
    names = {Wiring(run_dir).topics.name(topic) for topic in topics}
    return sorted(
        (str(path.relative_to(run_dir.kafka)), path.stat().st_size)
        for path in (run_dir.kafka / "log").glob("*/*.log")
        if path.parent.name.rpartition("-")[0] in names
    )


def _mark(run_dir: RunDir) -> str:
    return hashlib.sha256(repr(sizes_of(run_dir, INDEXED)).encode()).hexdigest()
